"""The keywords of the constructor, and ``getX`` and ``setX`` of every Param, made from the declarations in params.py.

Editors and mypy see them in accessors.pyi. ``python tools/api.py`` writes it, as a tool of Spark's writes the shared
Params of Spark ML.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bspauc_spark.spark.converters import CheckedParam, declared
from bspauc_spark.spark.params import BSPAUCParams

if TYPE_CHECKING:
    from typing_extensions import Self


def _accessors(param: CheckedParam[Any]) -> dict[str, Callable[..., Any]]:
    """The getter and the setter, by name."""

    def get(self: BSPAUCParams) -> Any:
        return self.getOrDefault(param.name)

    def set(self: BSPAUCParams, value: Any) -> BSPAUCParams:
        return self._set(**{param.name: value})

    get.__doc__ = f"Value of ``{param.name}``: {param.doc}."
    get.__annotations__ = {"return": param.kind}
    set.__doc__ = f"Set ``{param.name}``: {param.doc}."
    set.__annotations__ = {"value": param.kind, "return": "Self"}
    title = param.name[0].upper() + param.name[1:]
    return {f"get{title}": get, f"set{title}": set}


def _signature(params: list[CheckedParam[Any]]) -> inspect.Signature:
    """Of the constructor, with all keywords."""
    itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    keywords = [
        inspect.Parameter(
            one.name, inspect.Parameter.KEYWORD_ONLY, default=one.default, annotation=f"{one.kind} | None"
        )
        for one in params
    ]
    return inspect.Signature([itself, *keywords], return_annotation="None")


def _with_accessors(stage: type[Accessors]) -> type[Accessors]:
    params = list(declared(stage).values())
    stage.__init__.__signature__ = _signature(params)
    for name, accessor in ((name, one) for param in params for name, one in _accessors(param).items()):
        # Spark's mixins and our base class bring some getters.
        if not hasattr(stage, name):
            accessor.__name__, accessor.__qualname__ = name, f"{stage.__name__}.{name}"
            setattr(stage, name, accessor)
    return stage


@_with_accessors
class Accessors(BSPAUCParams):
    """The Params of the fit, with their getters and setters."""

    def __init__(self, **params: Any) -> None:
        inspect.signature(Accessors).bind(**params)
        super().__init__()
        self.setParams(**params)

    def setParams(self, **params: Any) -> Self:
        """Set several Params by name."""
        # None is what the signature shows for "unset"; as a value it would count as set.
        return self._set(**{name: value for name, value in params.items() if value is not None})
