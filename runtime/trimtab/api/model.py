"""`spec.model` and `spec.code`: what is trained, and the user's own Python."""

from typing import Annotated

from pydantic import Field, StringConstraints

from trimtab.api.base import Format, Model, Name, ObjectName, OneOf, PathText, Text


class TokenizerSpec(Model):
    """Where the tokenizer comes from, and how it renders chats."""

    path: PathText | None = None
    """Folder or hub id of the tokenizer; None: the model's."""
    revision: Name | None = None
    """Revision on the hub; None: the model's revision where the tokenizer is the model's, else the main
    one."""
    chat_template: Text | None = None
    """Chat template (Jinja) in place of the tokenizer's; None: the tokenizer's own."""


class ModelSpec(Model):
    """A causal language model in Hugging Face layout."""

    path: PathText
    """Folder (relative to the job's file, or absolute) or hub id. A folder that exists is preferred."""
    revision: Name | None = None
    """Branch, tag or commit on the hub; None: the main branch. Has no meaning for a folder."""
    tokenizer: TokenizerSpec = Field(default_factory=TokenizerSpec)
    """The tokenizer. By default the model's own."""
    attention: Name = "auto"
    """Attention of the training engine: `auto`, or a name that transformers knows, such as `sdpa` or
    `flash_attention_2`. `auto` takes the fastest that the device has."""
    trust_remote_code: bool = False
    """Whether Python code that comes with the model may run. Off by default: it runs with the job's
    rights."""


class ImageCode(Model):
    """Code that the roles' images contain already."""

    path: PathText
    """Folder in the image that is put on PYTHONPATH."""


class VolumeCode(Model):
    """Code on one of `spec.volumes`."""

    name: ObjectName
    """Name of the volume."""
    path: PathText = "."
    """Folder inside the volume that is put on PYTHONPATH. By default its root."""


class ConfigMapCode(Model):
    """Code in a ConfigMap: each key is a file."""

    name: ObjectName
    """Name of the ConfigMap, in the job's namespace."""


class GitCode(Model):
    """Code in a git repository."""

    url: Annotated[
        str,
        StringConstraints(min_length=1, max_length=1024, pattern=r"^(https?|ssh|git|file)://\S+$"),
        Format("a URL that begins with https://, http://, ssh://, git:// or file://"),
    ]
    """URL to clone."""
    revision: Name = "HEAD"
    """Branch, tag or commit. By default the head of the repository's main branch."""
    path: PathText = "."
    """Folder inside the repository that is put on PYTHONPATH. By default its root."""
    secret_name: ObjectName | None = None
    """Secret with the credentials; None: the repository is public."""


class CodeSpec(OneOf):
    """Where the user's Python (rewards, datasets) comes from."""

    path: PathText | None = None
    """Local folder (relative to the job's file) that is put on PYTHONPATH. Only for `trimtab run`."""
    image: ImageCode | None = None
    """Code in the roles' images."""
    volume: VolumeCode | None = None
    """Code on a volume."""
    config_map: ConfigMapCode | None = None
    """Code in a ConfigMap."""
    git: GitCode | None = None
    """Code in a git repository."""
