"""From a row's prompt to the text and the token ids that the model sees.

Called by `PromptDataset` on the coordinator. A prompt is text or a list of chat messages; whether the
tokenizer's chat template is applied follows `spec.data.applyChatTemplate`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import UserError

Message = dict[str, Any]


class PromptRenderer:
    """Renders prompts for one dataset; pure, the same prompt always gives the same ids."""

    def __init__(
        self,
        tokenizer: Any,
        *,
        apply_chat_template: str,
        system_prompt: str | None,
        template_arguments: Mapping[str, Any],
    ) -> None:
        self._tokenizer = tokenizer
        self._mode = apply_chat_template
        self._system_prompt = system_prompt
        self._arguments = dict(template_arguments)
        self._has_template = bool(tokenizer.chat_template)
        if apply_chat_template == "always" and not self._has_template:
            raise UserError(
                "spec.data.applyChatTemplate: 'always', but the tokenizer has no chat template; "
                f"{_TEMPLATE_REMEDY}, or set spec.data.applyChatTemplate: auto"
            )
        self.uses_template = apply_chat_template == "always" or (
            apply_chat_template == "auto" and self._has_template
        )
        if not self.uses_template:
            self._refuse_template_settings()

    def text(self, prompt: Any, *, where: str) -> str:
        """The prompt as the model sees it. Raises `UserError` naming the row (`where`)."""
        if isinstance(prompt, str) and not self.uses_template:
            return prompt
        messages = self._messages(prompt, where)
        if not self.uses_template:
            cause = (
                "spec.data.applyChatTemplate is 'never'"
                if self._mode == "never"
                else "the tokenizer has no chat template"
            )
            raise UserError(
                f"{where}: the prompt is a list of chat messages, but {cause}; "
                f"{_TEMPLATE_REMEDY}, or give prompts as text"
            )
        from jinja2 import TemplateError

        try:
            rendered: str = self._tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, **self._arguments
            )
        except (TemplateError, TypeError) as error:
            roles = ", ".join(message["role"] for message in messages)
            raise UserError(
                f"{where}: the chat template refused the messages (roles: {roles}) with "
                f"spec.data.chatTemplateArguments {self._arguments}: {error}"
            ) from None
        return rendered

    def token_ids(self, texts: Sequence[str]) -> list[NDArray[np.int32]]:
        """Ids of rendered texts; special tokens are added to plain text, a chat template writes its own."""
        encoded = self._tokenizer(list(texts), add_special_tokens=not self.uses_template, verbose=False)
        return [np.asarray(ids, np.int32) for ids in encoded["input_ids"]]

    def _messages(self, prompt: Any, where: str) -> list[Message]:
        if isinstance(prompt, str):
            messages: list[Message] = [{"role": "user", "content": prompt}]
        elif isinstance(prompt, list) and prompt and all(map(_is_message, prompt)):
            # Arrow gives every message every key; a template must not see the absent ones as None.
            messages = [{k: v for k, v in m.items() if v is not None} for m in prompt]
        else:
            raise UserError(
                f"{where}: a prompt must be text or a list of messages {{role, content}}, found "
                f"{type(prompt).__name__}: {str(prompt)[:80]}"
            )
        if self._system_prompt is not None and messages[0]["role"] != "system":
            messages.insert(0, {"role": "system", "content": self._system_prompt})
        return messages

    def _refuse_template_settings(self) -> None:
        cause = (
            "spec.data.applyChatTemplate is 'never'"
            if self._mode == "never"
            else "the tokenizer has no chat template"
        )
        for field, value in (
            ("spec.data.systemPrompt", self._system_prompt),
            ("spec.data.chatTemplateArguments", self._arguments or None),
        ):
            if value is not None:
                raise UserError(
                    f"{field}: {str(value)[:80]!r} has no effect, because {cause}; "
                    f"{_TEMPLATE_REMEDY}, or remove {field}"
                )


_TEMPLATE_REMEDY = "set spec.model.tokenizer.chatTemplate or use a tokenizer that has one"


def _is_message(item: Any) -> bool:
    return isinstance(item, Mapping) and isinstance(item.get("role"), str) and item.get("content") is not None
