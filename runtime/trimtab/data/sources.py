"""Rows of a dataset, wherever they lie: JSON lines, Parquet, Hugging Face, reasoning_gym, a user's class.

Called by `open_dataset` on the coordinator, once, before training. Every source becomes a `Rows`:
sequence of dicts that can name a row for an error message. The heavy readers are imported inside
the functions that need them.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from trimtab.errors import UserError
from trimtab.optional import import_optional
from trimtab.user_code import describe_exception, import_object

if TYPE_CHECKING:
    from trimtab.api.data import DataSource

JSONL_SUFFIXES = (".jsonl", ".ndjson", ".json")
PARQUET_SUFFIXES = (".parquet", ".pq")

Row = dict[str, Any]


class Rows(Protocol):
    """Random access to rows; the same index always gives the same row."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Row: ...

    def __iter__(self) -> Iterator[Row]: ...

    def where(self, index: int) -> str:
        """Names a row for a person: file and line, or dataset and row."""
        ...


class ListRows:
    """Rows held in memory."""

    def __init__(self, rows: Sequence[Row], places: Sequence[str] | str) -> None:
        self._rows = rows
        self._places = places

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Row:
        return self._rows[index]

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows)

    def where(self, index: int) -> str:
        """The given place of the row, or its number in the named source."""
        return f"{self._places}, row {index}" if isinstance(self._places, str) else self._places[index]


class ArrowRows:
    """Rows of a Hugging Face dataset, memory-mapped and decoded one at a time."""

    def __init__(self, dataset: Any, name: str) -> None:
        self._dataset = dataset
        self._name = name

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Row:
        return dict(self._dataset[int(index)])

    def __iter__(self) -> Iterator[Row]:
        return (dict(row) for row in self._dataset)

    def where(self, index: int) -> str:
        """Dataset and row number."""
        return f"{self._name}, row {index}"


def read_rows(
    source: "DataSource",
    *,
    base_dir: Path,
    code_paths: Sequence[Path],
    prompt_field: str,
    field: str,
) -> Rows:
    """Open whatever the source names. Raises `UserError` that begins with `field`.

    `prompt_field` is where sources that generate their rows put the prompt.
    """
    if source.hugging_face is not None:
        hub = source.hugging_face
        return _read_hugging_face(
            hub.name, config=hub.config, split=hub.split, revision=hub.revision, field=f"{field}.huggingFace"
        )
    if source.reasoning_gym is not None:
        gym = source.reasoning_gym
        return _read_reasoning_gym(
            gym.task,
            size=gym.size,
            seed=gym.seed,
            config=gym.config,
            prompt_field=prompt_field,
            field=f"{field}.reasoningGym",
        )
    if source.python is not None:
        return _read_python(
            source.python.class_name, source.python.arguments, code_paths=code_paths, field=f"{field}.python"
        )
    assert source.path is not None, "the API admits no source without a member"
    return _read_path(
        source.path, file_format=source.format, split=source.split, base_dir=base_dir, field=field
    )


def json_value(value: Any) -> Any:
    """A row's value as JSON; what JSON cannot hold (bytes, images) raises TypeError."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Mapping):
        return {str(key): json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [json_value(item) for item in value]
    if hasattr(value, "tolist"):  # numpy scalars and arrays
        return json_value(value.tolist())
    raise TypeError(type(value).__name__)


def json_fields(row: Mapping[str, Any]) -> Row:
    """The row as JSON values, for reward functions; columns that JSON cannot hold are left out."""
    fields: Row = {}
    for name, value in row.items():
        try:
            fields[str(name)] = json_value(value)
        except TypeError:
            continue
    return fields


def _read_path(path: str, *, file_format: str, split: str | None, base_dir: Path, field: str) -> Rows:
    location = base_dir / Path(path).expanduser()
    if not location.exists():
        raise UserError(f"{field}.path: {path!r} does not exist (looked at {location})")
    if file_format == "auto":
        file_format = _guess_format(location, field)
    if file_format == "huggingface":
        return _read_hugging_face(
            str(location), config=None, split=split, revision=None, field=f"{field}.path"
        )
    suffixes = PARQUET_SUFFIXES if file_format == "parquet" else JSONL_SUFFIXES
    files = [location]
    if location.is_dir():
        files = sorted(file for file in location.rglob("*") if file.suffix.lower() in suffixes)
        if not files:
            raise UserError(
                f"{field}.path: {path!r} is a folder without a file named *{' or *'.join(suffixes)}"
            )
    return _read_parquet(files, field) if file_format == "parquet" else _read_jsonl(files, field)


def _guess_format(location: Path, field: str) -> str:
    if location.is_dir():
        return "huggingface"
    suffix = location.suffix.lower()
    if suffix in PARQUET_SUFFIXES:
        return "parquet"
    if suffix in JSONL_SUFFIXES:
        return "jsonl"
    raise UserError(
        f"{field}.path: cannot tell the format of {location.name!r} from its name; "
        f"set {field}.format to jsonl, parquet or huggingface"
    )


def _read_jsonl(files: Sequence[Path], field: str) -> Rows:
    rows: list[Row] = []
    places: list[str] = []
    for file in files:
        try:
            with file.open("rb") as lines:
                for number, line in enumerate(lines, start=1):
                    place = f"{file}:{number}"
                    row = _parse_line(line, place, field)
                    if row is not None:
                        rows.append(row)
                        places.append(place)
        except OSError as error:
            raise UserError(f"{field}.path: cannot read {file}: {error.strerror}") from None
    return ListRows(rows, places)


def _parse_line(line: bytes, place: str, field: str) -> Row | None:
    try:
        text = line.decode("utf-8-sig").strip()
    except UnicodeDecodeError as error:
        raise UserError(
            f"{field}.path: {place}: not UTF-8 (byte {line[error.start]:#04x} at column {error.start + 1}); "
            "convert the file to UTF-8"
        ) from None
    if not text:
        return None
    try:
        row = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(
            f"{field}.path: {place}: not JSON: {error.msg} at column {error.colno}; "
            f"each line must be one JSON object, found {text[:60]!r}"
        ) from None
    if not isinstance(row, dict):
        raise UserError(
            f"{field}.path: {place}: each line must be a JSON object of the row's fields, "
            f"found {type(row).__name__}: {text[:60]!r}"
        )
    return row


def _read_parquet(files: Sequence[Path], field: str) -> Rows:
    import pyarrow
    from datasets import Dataset
    from pyarrow import parquet

    tables = []
    for file in files:
        try:
            tables.append(parquet.read_table(file, memory_map=True))
        except (pyarrow.ArrowException, OSError) as error:
            raise UserError(f"{field}.path: {file}: not readable as Parquet: {_first_line(error)}") from None
    try:
        table = pyarrow.concat_tables(tables, promote_options="default")
    except pyarrow.ArrowException as error:
        raise UserError(
            f"{field}.path: the Parquet files do not have the same columns: {_first_line(error)}"
        ) from None
    return ArrowRows(Dataset(table), str(files[0] if len(files) == 1 else files[0].parent))


def _read_hugging_face(
    name: str, *, config: str | None, split: str | None, revision: str | None, field: str
) -> Rows:
    import datasets

    folder = Path(name)
    saved = folder.is_dir() and any((folder / file).exists() for file in ("state.json", "dataset_dict.json"))
    try:
        if saved:
            loaded = datasets.load_from_disk(str(folder))
        else:
            loaded = datasets.load_dataset(name, config, split=split, revision=revision)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise UserError(f"{field}: cannot load the dataset {name!r}: {_first_line(error)}") from None
    if not isinstance(loaded, datasets.DatasetDict):
        return ArrowRows(loaded, name)
    if split is None and len(loaded) == 1:
        split = next(iter(loaded))
    if split not in loaded:
        found = "it has several splits" if split is None else f"it has no split {split!r}"
        raise UserError(f"{field}: {name!r}: {found}; set split to one of {', '.join(loaded)}")
    return ArrowRows(loaded[split], f"{name} ({split})")


def _read_reasoning_gym(
    task: str, *, size: int, seed: int, config: Mapping[str, Any], prompt_field: str, field: str
) -> Rows:
    gym = import_optional("reasoning_gym", field=field)
    tasks = gym.factory.DATASETS
    if task not in tasks:
        near = get_close_matches(task, tasks, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"it has {', '.join(sorted(tasks))}"
        raise UserError(f"{field}.task: reasoning_gym has no task {task!r}; {hint}")
    try:
        dataset = gym.create_dataset(task, size=size, seed=seed, **config)
    except (TypeError, ValueError, AssertionError) as error:
        raise UserError(f"{field}.config: {task} refuses {dict(config)}: {_first_line(error)}") from None
    rows = [{prompt_field: entry["question"], **entry} for entry in dataset]
    return ListRows(rows, f"reasoning_gym {task}")


def _read_python(
    class_name: str, arguments: Mapping[str, Any], *, code_paths: Sequence[Path], field: str
) -> Rows:
    factory = import_object(class_name, code_paths, field=f"{field}.className")
    if not callable(factory):
        raise UserError(f"{field}.className: {class_name!r} is a {type(factory).__name__}, not a class")
    rows = []
    try:
        dataset = factory(**arguments)
        for index in range(len(dataset)):
            rows.append(dict(dataset[index]))
    except Exception as error:
        raise UserError(
            f"{field}.className: {class_name} failed: {describe_exception(error)}; it must take "
            f"{field}.arguments and have __len__ and __getitem__(index) that returns a dict"
        ) from error
    return ListRows(rows, class_name)


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
