import json
from pathlib import Path

import pytest

from pilot_client.chat_template import ChatTemplate
from pilot_client.errors import ChatTemplateError

TURNS = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}, {"role": "user", "content": "?"}]
PLAIN = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def folder(path: Path, **settings: object) -> Path:
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    return path


def test_a_conversation_ends_where_the_assistant_speaks() -> None:
    assert ChatTemplate(PLAIN, {}).render(TURNS) == "[user]Hi[assistant]Hello[user]?[assistant]"


def test_special_tokens_come_as_text_or_as_objects(tmp_path: Path) -> None:
    path = folder(
        tmp_path, chat_template="{{ bos_token }}{{ eos_token }}", bos_token="<s>", eos_token={"content": "</s>"}
    )
    assert ChatTemplate.from_path(path).render(TURNS) == "<s></s>"


def test_the_template_in_a_file_of_its_own_wins(tmp_path: Path) -> None:
    folder(tmp_path, chat_template="old", bos_token="<s>")
    (tmp_path / "chat_template.jinja").write_text("new {{ bos_token }}")
    assert ChatTemplate.from_path(tmp_path).render(TURNS) == "new <s>"
    assert ChatTemplate.from_path(tmp_path / "chat_template.jinja").render(TURNS) == "new <s>"


def test_the_default_one_of_several_templates(tmp_path: Path) -> None:
    templates = [{"name": "rag", "template": "no"}, {"name": "default", "template": "yes"}]
    assert ChatTemplate.from_path(folder(tmp_path, chat_template=templates)).render(TURNS) == "yes"


def test_text_is_not_escaped_for_html() -> None:
    source = "{{ messages[0] | tojson }}"
    assert ChatTemplate(source, {}).render([{"role": "user", "content": "<ä&'>"}]) == (
        """{"role": "user", "content": "<ä&'>"}"""
    )


def test_a_template_that_refuses_a_conversation_says_why() -> None:
    source = "{% if messages[0].role == 'system' %}{{ raise_exception('no system message, please') }}{% endif %}"
    with pytest.raises(ChatTemplateError, match="no system message, please"):
        ChatTemplate(source, {}).render([{"role": "system", "content": "x"}])


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__['json'] }}",
    ],
)
def test_a_template_cannot_leave_its_sandbox(source: str) -> None:
    with pytest.raises(ChatTemplateError, match="refuses this conversation"):
        ChatTemplate(source, {}).render(TURNS)


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    with pytest.raises(ChatTemplateError, match=r"does not exist: give the folder"):
        ChatTemplate.from_path(tmp_path / "nowhere")
    with pytest.raises(ChatTemplateError, match="holds no chat template"):
        ChatTemplate.from_path(folder(tmp_path, bos_token="<s>"))
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ChatTemplateError, match="is not JSON"):
        ChatTemplate.from_path(tmp_path)
    with pytest.raises(ChatTemplateError, match="chat template: "):
        ChatTemplate("{% if %}", {})
