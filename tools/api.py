"""What is derived from the code: ``python tools/api.py`` writes it, and a test says if it is old.

docs/api.md is the reference, from the docstrings; accessors.pyi tells editors and mypy what the Params' declarations
make.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import bspauc_spark
from bspauc_spark import BSPAUCClassifier, BSPAUCModel, SelfPacedClassifier, SelfPacedModel, flavor, noise
from bspauc_spark.around.summary import SelfPacedSummary
from bspauc_spark.baselines import KOIL, OPAUC, PPD, CrossEntropy
from bspauc_spark.errors import BSPAUCError
from bspauc_spark.results.diagnostics import Diagnostics
from bspauc_spark.results.summary import TrainingSummary
from bspauc_spark.selection import Selection, calibrate, solve
from bspauc_spark.serving import Predictor
from bspauc_spark.spark import accessors
from bspauc_spark.statistics import ClassScores

PAGE = Path(__file__).resolve().parents[1] / "docs" / "api.md"
STUB = Path(accessors.__file__).with_suffix(".pyi")
_HEAD = """# API reference

Made from the docstrings by `python tools/api.py`.
"""


def render() -> str:
    """The page."""
    parts = [_HEAD, _classifier(BSPAUCClassifier), *map(_class, (BSPAUCModel, TrainingSummary, Diagnostics))]
    parts += [_classifier(SelfPacedClassifier), *map(_class, (SelfPacedModel, SelfPacedSummary))]
    parts += ["## MLflow\n", _function(bspauc_spark.log_model), _function(flavor.save_model), _class(Predictor, "###")]
    parts += ["## The selection, numpy only\n", *map(_function, (solve, calibrate))]
    parts += [_class(one, "###") for one in (Selection, ClassScores)]
    parts += ["## Noise\n", *map(_function, (noise.flip_labels, noise.flip_dataframe, noise.poison))]
    parts += ["## Baselines\n", *(_class(one, "###") for one in (OPAUC, KOIL, PPD, CrossEntropy))]
    parts += ["## Errors\n", _errors()]
    return "\n".join(parts)


_STUB_HEAD = """# Made from the declarations in params.py by `python tools/api.py`.
from typing import Any

from typing_extensions import Self

from bspauc_spark.spark.params import BSPAUCParams

class Accessors(BSPAUCParams):
"""


def render_stub() -> str:
    """What editors and mypy read in place of accessors.py."""
    members = {name: inspect.signature(one) for name, one in vars(accessors.Accessors).items() if callable(one)}
    return _STUB_HEAD + "".join(f"    def {name}{_stub_signature(one)}: ...\n" for name, one in members.items())


def _stub_signature(signature: inspect.Signature) -> str:
    unquoted = re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(signature)).replace("'", '"')
    inside, returned = unquoted[1:].split(") -> ")
    if "*, " in inside:
        inside = "".join(f"\n        {one}," for one in re.split(r", (?=\*|\w+:)", inside)) + "\n    "
    return f"({inside}) -> {returned}"


def _classifier(kind: type[BSPAUCClassifier] | type[SelfPacedClassifier]) -> str:
    defaults = kind()
    lines = [f"## {kind.__name__}\n", _doc(kind), ""]
    lines += ["Every Param has a getter and a setter.", "", "| Param | default | what |", "|---|---|---|"]
    for param in sorted(defaults.params, key=lambda one: one.name):
        value = repr(defaults.getOrDefault(param)) if defaults.hasDefault(param) else "unset"
        lines.append(f"| `{param.name}` | {value} | {param.doc} |".replace("‖", "&#8214;"))
    return "\n".join([*lines, ""])


def _class(kind: type, level: str = "##") -> str:
    lines = [f"{level} {kind.__name__}\n", _doc(kind), ""]
    for name, member in vars(kind).items():
        if name.startswith("_") or name in ("count", "index"):
            continue
        if isinstance(member, property):
            lines += [f"- **`{name}`**: {_flat(_doc(member))}"]
        elif isinstance(member, (staticmethod, classmethod)):
            lines += [f"- **`{kind.__name__}.{name}{_signature(member.__func__)}`**: {_flat(_doc(member.__func__))}"]
        elif inspect.isfunction(member) and member.__doc__:
            lines += [f"- **`{name}{_signature(member)}`**: {_flat(_doc(member))}"]
        elif hasattr(member, "func") and member.func.__doc__:
            lines += [f"- **`{name}`**: {_flat(_doc(member.func))}"]
    return "\n".join([*lines, ""])


def _function(function: Any) -> str:
    return f"### `{function.__name__}{_signature(function)}`\n\n{_doc(function)}\n"


def _signature(function: Any) -> str:
    signature = inspect.signature(function)
    shown = [one for one in signature.parameters.values() if one.name not in ("self", "cls")]
    return re.sub(r"'", "", str(signature.replace(parameters=shown)))


def _doc(thing: Any) -> str:
    text = inspect.getdoc(thing) or ""
    # numpydoc's underlined headings as bold ones.
    return re.sub(r"^(\w[\w ]*)\n-{3,}$", r"**\1**\n", text, flags=re.MULTILINE).replace("``", "`")


def _flat(text: str) -> str:
    return " ".join(text.split())


def _errors() -> str:
    def below(kind: type) -> list[type]:
        return [kind, *(found for child in kind.__subclasses__() for found in below(child))]

    kinds = [kind for kind in below(BSPAUCError) if kind.__module__ == "bspauc_spark.errors"]
    return "\n".join(f"- **`{kind.__name__}`**: {_flat(_doc(kind))}" for kind in kinds) + "\n"


if __name__ == "__main__":
    PAGE.write_text(render())
    STUB.write_text(render_stub())
