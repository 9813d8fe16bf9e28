"""Features from a table's columns: the stages that make them, and a table as saved stages read it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pyspark.ml import PipelineModel, Transformer
from pyspark.ml.feature import (
    Imputer,
    ImputerModel,
    OneHotEncoder,
    StandardScaler,
    StringIndexer,
    StringIndexerModel,
    VectorAssembler,
)
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from bspauc_spark.around.model import SelfPacedModel
from bspauc_spark.command_line import cells
from bspauc_spark.command_line.tables import check_free, check_present, replaced, undotted, without_dots
from bspauc_spark.errors import InvalidDataError
from bspauc_spark.model import BSPAUCModel
from bspauc_spark.rows.categories import EXACT, NUMBER, are_flags, are_numbers
from bspauc_spark.rows.columns import quoted

FEATURES = "bspauc__features"
_NUMBERS, _SCALED = "bspauc__numbers", "bspauc__scaled"


class Made(NamedTuple):
    """What is made of a table's columns: by which stages, in which column, and the gaps that they fill."""

    stages: list[Any]
    vector: str
    gaps: dict[str, int]


def feature_columns(frame: DataFrame, named: Sequence[str] | None, label: str, excluded: Collection[str]) -> list[str]:
    """The columns to learn from: those named, or all but the label and those ``excluded``."""
    if named:
        check_present(frame, named, "--features")
        if label in named:
            raise InvalidDataError(f"--features {label} is --label, which is what is to be learned. Leave it out.")
        return list(dict.fromkeys(named))
    chosen = [name for name in frame.columns if name != label and name not in excluded]
    if not chosen:
        raise InvalidDataError("no column is left to learn from: --exclude fewer, or name some by --features.")
    return chosen


def flags_as_text(frame: DataFrame, names: Iterable[str]) -> DataFrame:
    """Booleans among ``names`` as text, since StringIndexer takes none."""
    flags = [name for name in names if isinstance(frame.schema[name].dataType, st.BooleanType)]
    return replaced(frame, {name: quoted(name).cast("string") for name in flags})


def feature_stages(
    frame: DataFrame,
    names: Sequence[str],
    categorical: Sequence[str],
    impute: str,
    most_categories: int,
    words: Collection[str] = (),
    learned: Column | None = None,
    scale: bool = True,
) -> Made:
    """Pipeline stages from columns to one vector; they read the table ``without_dots``.

    Text is encoded, numbers are imputed and scaled; what has no other values than 0 and 1 stays so. Among numbers,
    ``words`` stand for gaps, which stay gaps if ``impute`` is ``"keep"``. ``learned`` says of which rows the stages are
    to be fitted; all others must pass them too.
    """
    types = {name: frame.schema[name].dataType for name in names}
    if len(names) == 1 and isinstance(types[names[0]], (VectorUDT, st.ArrayType)):
        return Made([], undotted(names[0]), {})
    texts = [name for name, kind in types.items() if isinstance(kind, st.StringType) or name in categorical]
    numbers = [name for name, kind in types.items() if isinstance(kind, st.NumericType) and name not in texts]
    booleans = [name for name, kind in types.items() if isinstance(kind, st.BooleanType) and name not in texts]
    for name in names:
        if name not in texts + numbers + booleans and not isinstance(types[name], VectorUDT):
            kind = types[name].simpleString()
            raise InvalidDataError(
                f"column {name} has type {kind}, from which no feature is made. Convert it, or --exclude it."
            )
    learned = sf.lit(True) if learned is None else learned
    _check_texts(frame, texts, categorical, most_categories, words, learned)
    values = _values(frame, {name: quoted(name).cast("double") for name in numbers + booleans}, learned)
    gaps = _check_values(values, booleans, impute)
    stages: list[Any] = []
    inputs = {name: undotted(name) for name in names}
    if gaps and impute != "keep":
        filled = [f"{inputs[name]}__imputed" for name in gaps]
        stages.append(Imputer(inputCols=[inputs[name] for name in gaps], outputCols=filled, strategy=impute))
        inputs |= dict(zip(gaps, filled, strict=True))
    if texts:
        read = [inputs[name] for name in texts]
        indexed, encoded = ([f"{name}__{kind}" for name in read] for kind in ("index", "onehot"))
        inputs |= dict(zip(texts, encoded, strict=True))
        stages.append(StringIndexer(inputCols=read, outputCols=indexed, handleInvalid="keep"))
        stages.append(OneHotEncoder(inputCols=indexed, outputCols=encoded, dropLast=False))
        check_free(frame, indexed)
    check_free(frame, [made for name, made in inputs.items() if made != undotted(name)])
    if impute == "keep":
        # Apart from vectors, whose size an assembler that keeps gaps would have to know.
        kept, gaps = [inputs.pop(name) for name in numbers + booleans], {}
        if kept:
            stages.append(VectorAssembler(inputCols=kept, outputCol=_NUMBERS, handleInvalid="keep"))
            inputs[_NUMBERS] = _NUMBERS
    # A rare category or flag is left as 0 and 1: scaled to 0 and 30 it would be learned by heart.
    unscaled = {*texts, *booleans, *(name for name in numbers if not values[name].others)}
    scaled = [inputs.pop(name) for name in names if name not in unscaled] if scale else []
    parts = list(inputs.values())
    if scaled:
        stages.append(VectorAssembler(inputCols=scaled, outputCol=_NUMBERS))
        stages.append(StandardScaler(inputCol=_NUMBERS, outputCol=_SCALED, withMean=True))
        parts.insert(0, _SCALED)
    stages.append(VectorAssembler(inputCols=parts, outputCol=FEATURES))
    return Made(stages, FEATURES, gaps)


def with_doubles(frame: DataFrame, stages: Iterable[Any]) -> DataFrame:
    """The table ``without_dots``, and doubles where numbers are imputed: in whole ones Spark cuts the mean off."""
    names = [name for stage in stages if isinstance(stage, Imputer) for name in _inputs(stage)]
    frame = without_dots(frame)
    return replaced(frame, {name: quoted(name).cast("double") for name in names})


def _check_texts(
    frame: DataFrame,
    texts: list[str],
    categorical: Collection[str],
    most: int,
    words: Collection[str],
    learned: Column,
) -> None:
    if not texts:
        return
    undecided = cells.count_texts(frame, [name for name in texts if name not in categorical], words)
    cells.check_odd(frame, undecided, words)
    distinct = frame.where(learned).select(*(sf.approx_count_distinct(quoted(name)) for name in texts)).first()
    assert distinct is not None
    for name, count in zip(texts, distinct, strict=True):
        if not count:
            raise InvalidDataError(_EMPTY.format(name))
        if count > most:
            why = cells.why_text(frame, name, undecided[name], words) if name in undecided else ""
            raise InvalidDataError(
                f"column {name} has about {count:,} different values, too many to encode{why}. Leave it out by "
                f"--exclude, or raise --max-categories above {most:,}."
            )


_EMPTY = "column {} has no value in any row to learn from. Leave it out by --exclude."


@dataclass(frozen=True)
class _Values:
    """Of a column of numbers: rows without one, and infinite ones; of the rows to learn from, those that have one, and
    one other than 0 and 1.
    """

    rows: int
    missing: int
    infinite: int
    learned: int
    others: int


def _values(frame: DataFrame, columns: Mapping[str, Column], learned: Column | None = None) -> dict[str, _Values]:
    """One pass over the table; ``columns`` are doubles."""
    if not columns:
        return {}
    sums = [sf.count("*")]
    for column in columns.values():
        there = column.isNotNull() & ~sf.isnan(column)
        seen = there if learned is None else there & learned
        sums += [sf.count_if(~there), sf.count_if(sf.abs(column) == float("inf"))]
        sums += [sf.count_if(seen), sf.count_if(seen & ~column.isin(0.0, 1.0))]
    found = frame.select(*sums).first()
    assert found is not None
    rows, *counts = found
    return {name: _Values(rows, *counts[4 * k : 4 * k + 4]) for k, name in enumerate(columns)}


def _check_values(values: Mapping[str, _Values], booleans: Sequence[str], impute: str) -> dict[str, int]:
    """Refuse what no stage can mend; the columns with gaps to be filled, and how many."""
    for name, found in values.items():
        if not found.learned:
            raise InvalidDataError(_EMPTY.format(name))
        _check_finite(name, found, "Mend them, or --exclude it.")
        if found.missing and name in booleans and impute != "keep":
            raise InvalidDataError(
                f"column {name} holds true and false, and nothing in {found.missing:,} of {found.rows:,} rows. Fill "
                "the gaps, or --exclude it; by --categorical, a gap is a category of its own."
            )
    gaps = {name: found.missing for name, found in values.items() if found.missing}
    if gaps and impute == "error":
        name, missing = next(iter(gaps.items()))
        also = f", as have {len(gaps) - 1} other columns" if len(gaps) > 1 else ""
        raise InvalidDataError(
            f"column {name} has no value in {missing:,} of {values[name].rows:,} rows{also}. Fill them, or --impute "
            "median."
        )
    return gaps


def _check_finite(name: str, found: _Values, remedy: str) -> None:
    if found.infinite:
        raise InvalidDataError(f"column {name} has {found.infinite:,} infinite values in {found.rows:,} rows. {remedy}")


def width_read(model: PipelineModel) -> int | None:
    """Of how many numbers the vectors are that ``model`` reads, where no stage makes them from others."""
    last = model.stages[-1]
    assert isinstance(last, BSPAUCModel | SelfPacedModel)
    return last.numFeatures if len(model.stages) == 1 else None


def prepared(model: PipelineModel, frame: DataFrame, words: Collection[str] = ()) -> tuple[Any, DataFrame]:
    """The last stage, and the rows as they come to it; among numbers, ``words`` stand for gaps."""
    *before, last = model.stages
    assert isinstance(last, BSPAUCModel | SelfPacedModel)
    stages: list[Transformer] = list(before)
    frame = _as_read(stages, frame, words)
    for stage in stages:
        for column in _inputs(stage):
            if column not in frame.columns:
                raise InvalidDataError(f"the model reads a column {column}, which --input does not have.")
        frame = stage.transform(frame)
    return last, frame


def _as_read(stages: Sequence[Transformer], frame: DataFrame, words: Collection[str]) -> DataFrame:
    """The table with the types that the stages take: what they count as numbers in training is text in a CSV."""
    given = {undotted(name): name for name in frame.columns}
    frame = without_dots(frame)
    read = {
        kind: [name for stage in stages if isinstance(stage, kind) for name in _inputs(stage) if name in given]
        for kind in (StringIndexerModel, ImputerModel, VectorAssembler)
    }
    frame = _categories_as_learned(stages, flags_as_text(frame, read[StringIndexerModel]))
    numbers = {
        name: _number(given[name], name, frame.schema[name].dataType, words)
        for name in dict.fromkeys(read[ImputerModel] + read[VectorAssembler])
        if not isinstance(frame.schema[name].dataType, (VectorUDT, st.ArrayType))
    }
    filled = {*read[ImputerModel], *(name for stage in stages if _lets_gaps_pass(stage) for name in _inputs(stage))}
    texts = [name for name in numbers if isinstance(frame.schema[name].dataType, st.StringType)]
    _check_numbers(frame, numbers, texts, given, filled, words)
    return replaced(frame, {name: numbers[name] for name in (*texts, *read[ImputerModel])})


def _categories_as_learned(stages: Sequence[Transformer], frame: DataFrame) -> DataFrame:
    """The table with flags and numbers that are categories spelled as in training."""
    spelled: dict[str, Column] = {}
    for stage in stages:
        if isinstance(stage, StringIndexerModel):
            for name, labels in zip(_inputs(stage), stage.labelsArray, strict=True):
                text = quoted(name).cast("string")
                if name in frame.columns and (other := _other_spellings(text, labels)):
                    spelled[name] = sf.coalesce(sf.when(text.isin(*labels), text), *other, text)
    return replaced(frame, spelled)


def _other_spellings(text: Column, labels: Sequence[str]) -> list[Column]:
    """The label that ``text`` stands for, of those that have several spellings, or null."""
    if are_flags(labels):
        return [sf.when(sf.lower(text) == label.lower(), label) for label in labels]
    if not are_numbers(labels):
        return []
    # 1 and 1.0 may both be labels.
    known = {value: label for label in reversed(labels) if abs(value := float(label)) <= EXACT}
    pairs = [sf.lit(part) for pair in known.items() for part in pair]
    label = sf.try_element_at(sf.create_map(*pairs), text.try_cast("double"))
    return [sf.when(text.rlike(rf"^({NUMBER.pattern})\z"), label)] if pairs else []


def _lets_gaps_pass(stage: Transformer) -> bool:
    return isinstance(stage, VectorAssembler) and stage.getHandleInvalid() != "error"


def _number(given: str, name: str, kind: st.DataType, words: Collection[str]) -> Column:
    if isinstance(kind, st.StringType):
        # A flag of the training may be true and false here.
        return sf.coalesce(cells.without(quoted(name), words).try_cast("double"), _flag(name).cast("double"))
    if isinstance(kind, (st.NumericType, st.BooleanType)):
        return quoted(name).cast("double")
    raise InvalidDataError(f"column {given} has type {kind.simpleString()}, but the model reads numbers there.")


def _flag(name: str) -> Column:
    lower = sf.lower(sf.trim(quoted(name)))
    return sf.when(lower.isin("true", "false"), lower == "true")


def _check_numbers(
    frame: DataFrame,
    numbers: Mapping[str, Column],
    texts: Sequence[str],
    given: Mapping[str, str],
    filled: set[str],
    words: Collection[str],
) -> None:
    """Refuse text, infinite values, and gaps that no stage fills: Spark would fail at them halfway."""
    values = _values(frame, numbers)
    odd = {name: numbers[name].isNull() & ~cells.is_gap(quoted(name), words) for name in texts}
    counts = dict(zip(odd, frame.select(*map(sf.count_if, odd.values())).first() or (), strict=True)) if odd else {}
    for name, found in values.items():
        if counts.get(name):
            raise InvalidDataError(
                f"column {given[name]} has text in {counts[name]:,} of {found.rows:,} rows, where the model reads "
                f"numbers: {cells.named(frame, name, odd[name])}. Mend them, or say by --gaps what stands for a number "
                "that is not there."
            )
        _check_finite(given[name], found, "Mend them.")
        if found.missing and name not in filled:
            raise InvalidDataError(
                f"column {given[name]} has no value in {found.missing:,} of {found.rows:,} rows, and the model fills "
                "no gaps there, as it met none in training. Fill them."
            )


def _inputs(stage: Any) -> list[str]:
    if stage.hasParam("inputCols") and stage.isSet("inputCols"):
        return list(stage.getInputCols())
    return [stage.getInputCol()] if stage.hasParam("inputCol") and stage.isSet("inputCol") else []
