"""`spec.data`, and the data sources that training and validation read."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from trimtab.api.base import ImportPath, JsonObject, Model, Name, OneOf, PathText, Text


class HuggingFaceSource(Model):
    """A dataset on the Hugging Face hub."""

    name: Name
    """Hub id of the dataset."""
    config: Name | None = None
    """Configuration of the dataset; None: its default one."""
    split: Name = "train"
    """Split to read. By default the training split."""
    revision: Name | None = None
    """Branch, tag or commit; None: the main branch."""


class ReasoningGymSource(Model):
    """Tasks that reasoning_gym makes up and can score."""

    task: Name
    """Name of the task, such as `basic_arithmetic`."""
    size: Annotated[int, Field(ge=1, le=10_000_000)] = 1000
    """Number of problems. 1000 by default: a few epochs of a small job."""
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """Seed of the problems; another seed for validation than for training keeps the two apart."""
    config: JsonObject = Field(default_factory=dict)
    """Arguments of the task. Empty by default: the task's own defaults."""


class PythonSource(Model):
    """A dataset class of the user's."""

    class_name: ImportPath
    """`package.module:Class`; an object of it has `len()` and gives rows (dictionaries) by index."""
    arguments: JsonObject = Field(default_factory=dict)
    """Keyword arguments of the class. Empty by default: none."""


class DataSource(OneOf):
    """Rows with a prompt."""

    shared: ClassVar[frozenset[str]] = frozenset({"format", "split"})

    path: PathText | None = None
    """File or folder (relative to the job's file, or absolute)."""
    format: Literal["auto", "jsonl", "parquet", "huggingface"] = "auto"
    """Format of `path`. `auto` tells by the name's ending; a folder is a saved Hugging Face dataset."""
    split: Name | None = None
    """Split of `path`, where it is a saved Hugging Face dataset with several; None: the only one."""
    hugging_face: HuggingFaceSource | None = None
    """A dataset on the Hugging Face hub."""
    reasoning_gym: ReasoningGymSource | None = None
    """Tasks of reasoning_gym."""
    python: PythonSource | None = None
    """A dataset class of the user's."""

    @model_validator(mode="after")
    def _format_goes_with_path(self) -> "DataSource":
        extra = sorted(self.shared & self.model_fields_set)
        if extra and self.path is None:
            raise PydanticCustomError("shared_field", "{field} goes with path alone", {"field": extra[0]})
        return self


class DataSpec(Model):
    """What prompts the policy is trained on."""

    train: DataSource
    """Rows to train on."""
    prompt_field: Name = "prompt"
    """Field of a row that holds the prompt: text, or a list of chat messages."""
    system_prompt: Text | None = None
    """System message put before every prompt; None: none."""
    apply_chat_template: Literal["auto", "always", "never"] = "auto"
    """Whether prompts go through the chat template. `auto`: chat messages always, plain text where the
    tokenizer has a template."""
    chat_template_arguments: JsonObject = Field(default_factory=dict)
    """Further arguments of the chat template, such as `enable_thinking`. Empty by default: none."""
    max_prompt_tokens: Annotated[int, Field(ge=1, le=4_194_304)] = 512
    """Longest prompt, in tokens after rendering. 512 by default: enough for a question without documents."""
    overlong_prompts: Literal["filter", "error"] = "filter"
    """What happens to longer prompts: left out and counted, or the job fails. Never truncated."""
    shuffle: bool = True
    """Whether each epoch has an order of its own, which follows from `seed`. On by default."""
