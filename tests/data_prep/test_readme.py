"""The commands of data_prep/README.md and of the scripts' own help are ones that the scripts accept."""

import importlib
import re
import shlex

import pytest
from build_questions import chosen_data_set

from tests.data_prep.conftest import ROOT
from verl_dots.files import Parser

SCRIPTS = sorted(path.stem for path in (ROOT / "data_prep").glob("*.py"))
README = (ROOT / "data_prep" / "README.md").read_text(encoding="utf-8")


def commands(text):
    """Every `python data_prep/X.py ...`, its lines joined and comments left out, as a list of words."""
    lines = text.replace("\\\n", " ").splitlines()
    found = [line.strip() for line in lines if line.strip().startswith("python data_prep/")]
    return [shlex.split(line, comments=True)[1:] for line in found]


def accepts(words, monkeypatch):
    """Parse a command line with the script's own parser, up to where it would begin to work."""

    class Parsed(BaseException):
        pass

    def stop(self, argv=None, namespace=None):
        raise Parsed(original(self, argv, namespace))

    original = Parser.parse_args
    script, *arguments = words
    main = importlib.import_module(script.removeprefix("data_prep/").removesuffix(".py")).main
    with monkeypatch.context() as patch:
        patch.setattr(Parser, "parse_args", stop)
        with pytest.raises(Parsed) as caught:
            main(arguments)
    return caught.value.args[0]


def test_commands_of_the_readme(monkeypatch):
    found = commands(README)
    assert {words[0] for words in found} == {f"data_prep/{name}.py" for name in SCRIPTS}
    for words in found:
        args = accepts(words, monkeypatch)
        if words[0].endswith("build_questions.py"):
            chosen_data_set(args)
        elif hasattr(importlib.import_module(words[0][10:-3]), "check"):
            importlib.import_module(words[0][10:-3]).check(args)


@pytest.mark.parametrize("name", SCRIPTS)
def test_commands_of_the_help(name, monkeypatch):
    text = importlib.import_module(name).__doc__
    found = commands(text)
    assert found and all(words[0] == f"data_prep/{name}.py" for words in found)
    for words in found:
        accepts(words, monkeypatch)


def test_options_that_the_readme_names_exist(capsys):
    helps = ""
    for name in SCRIPTS:
        with pytest.raises(SystemExit):
            importlib.import_module(name).main(["--help"])
        helps += capsys.readouterr().out
    named = set(re.findall(r"--[a-z][a-z-]+", re.sub(r"sbatch.*", "", README)))
    assert named <= set(re.findall(r"--[a-z][a-z-]+", helps))


def test_every_data_set_has_a_command_in_the_readme():
    from sources.registry import DATA_SETS

    for name in DATA_SETS:
        assert re.search(rf"^python data_prep/build_questions.py {name} ", README, re.M), name
        assert f"| `{name}` |" in README, name
