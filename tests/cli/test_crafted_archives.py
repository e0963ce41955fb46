"""Files made to mislead: refused in one line, without memory or folders that they ask for."""

import contextlib
import io
import json
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest
from safetensors.numpy import save_file

from normgrad.cli import archives
from normgrad.tensors import dtypes

F = np.float32
#: Far more than any of the files, far less than any of them claims.
LITTLE = 8 << 20


@pytest.fixture
def cheaply_refused(refused):
    """As ``refused``, in little memory."""

    def run(file, *arguments):
        tracemalloc.start()
        try:
            line = refused(file, *arguments)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < LITTLE
        return line

    return run


def npy(shape, descr="<f4", data=b"", version=1):
    """A .npy file with any header."""
    header = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape!r}, }}".encode()
    header = header.ljust(117) + b"\n"
    length = struct.pack("<H" if version == 1 else "<I", len(header))
    return b"\x93NUMPY" + bytes([version, 0]) + length + header + data


def array(value):
    buffer = io.BytesIO()
    np.save(buffer, value)
    return buffer.getvalue()


def archive(path, compression=zipfile.ZIP_STORED, **members):
    """A .npz of a batch norm, but for these members."""
    small = array(np.ones((2, 3, 4), F))
    words = {"operator": array("batch_norm_backward"), "training": array(True)}
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, content in {**words, "grad_out": small, "input": small, **members}.items():
            file.writestr(f"{name}.npy", content)
    return path


def test_the_honest_archive_is_taken(cli, tmp_path):
    result = cli("run", archive(tmp_path / "layer.npz"))
    assert result.exit_code == 0, result.stderr
    version_2 = npy((3,), data=bytes(12), version=2)
    result = cli("run", archive(tmp_path / "layer.npz", weight=version_2))
    assert result.exit_code == 0, result.stderr


@pytest.mark.parametrize("name", ["input", "training"])
@pytest.mark.parametrize("shape", [(1 << 40,), (1 << 62, 1 << 62), (3, 1 << 33)])
def test_npy_headers_that_claim_far_more(cheaply_refused, tmp_path, name, shape):
    file = archive(tmp_path / "layer.npz", **{name: npy(shape, data=bytes(96))})
    start = f"{file}: {name}: shape {shape} in a file this small; allowed: at most "
    assert cheaply_refused(file) == f"{start}{1032 * file.stat().st_size} bytes"


def test_npy_headers_that_are_wrong(cheaply_refused, tmp_path):
    for member, reason in [
        (npy((2, 3, 5), data=bytes(96)), "damaged or truncated (EOF: reading array data"),
        (npy((-2, -12), data=bytes(96)), "damaged or truncated ("),
        (npy((24,), "|O", bytes(96)), "an array of Python objects, which are never unpickled"),
        (npy((24,), "<f3", bytes(96)), "damaged or truncated ("),
        (npy((24.5,), data=bytes(96)), "damaged or truncated (shape is not valid"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff{", "damaged or truncated (EOF"),
        (npy((24,), data=bytes(96))[:60], "damaged or truncated (EOF"),
        (b"", "damaged or truncated (EOF"),
        (b"GIF89a" + bytes(90), "damaged or truncated (the magic string is not correct"),
        (b"\x93NUMPY\x01\x00\x10\x00" + b"(" * 16, "damaged or truncated ("),
        (b"\x93NUMPY\x01\x00\xf4\x01" + b"[a**-" * 100, "damaged or truncated ("),
        (b"\x93NUMPY\x01\x00\x01\x04" + b"-" * 1025, "damaged or truncated (Header info length"),
        (npy((1 << 40,), "|V0"), "dtype |V0; allowed: "),
        (npy((4,), [("a", "<f4"), ("b", "|V2")], bytes(24)), "dtype record; allowed: "),
        (npy((6,), ("<f4", (4,)), bytes(96)), "dtype |V16; allowed: "),
    ]:
        file = archive(tmp_path / "layer.npz", input=member)
        line = cheaply_refused(file)
        assert line.startswith(f"{file}: input: {reason}"), line


def test_axes_that_cost_nothing(cheaply_refused, cli, tmp_path):
    """No element, and yet so many channels that their gradients would fill any memory."""
    empty = npy((0, 1 << 40, 2))
    file = archive(tmp_path / "layer.npz", grad_out=empty, input=empty)
    assert cheaply_refused(file) == (
        f"{file}: grad_out: shape (0, {1 << 40}, 2) in a file this small; allowed: at most "
        f"{1032 * file.stat().st_size} bytes"
    )
    tensors = {"grad_out": np.zeros((0, 1 << 40), F), "input": np.zeros((0, 1 << 40), F)}
    file = tmp_path / "layer.safetensors"
    save_file(tensors, file, metadata={"operator": "batch_norm_backward", "training": "1"})
    assert cheaply_refused(file).startswith(f"{file}: grad_out: shape (0, {1 << 40}) in a file")

    empty = npy((0, 1000, 7))
    result = cli("run", archive(tmp_path / "fair.npz", grad_out=empty, input=empty))
    assert result.exit_code == 0, result.stderr
    assert "(0, 1000, 7)" in result.stdout


def test_zip_bombs(cheaply_refused, tmp_path):
    """Nested compression that the directory admits to, and a directory that lies."""
    file = archive(tmp_path / "layer.npz", zipfile.ZIP_DEFLATED)
    content = bytearray(file.read_bytes())
    entry = content.index(b"PK\x01\x02")
    struct.pack_into("<I", content, entry + 24, 0xFFFFFFF0)
    file.write_bytes(content)
    size = len(content)
    members = zipfile.ZipFile(file).infolist()
    packed = sum(member.compress_size for member in members)
    total = sum(member.file_size for member in members)
    assert total > 0xFFFFFFF0
    assert cheaply_refused(file) == (
        f"{file}: the archive: {packed} bytes that claim to unpack to {total}; allowed: {size}, "
        f"the file's size, and at most {1032 * size}"
    )


@pytest.fixture
def within_promise():
    """Reads an entry that cannot be read; the reason, given in no more memory than is promised."""

    def read(file, name):
        with archives.reading(file) as found:
            if name == "input":
                found.tensor(name, dtypes.FLOATS)
            else:
                found.value(name)

    def run(file, name):
        tracemalloc.start()
        try:
            with pytest.raises(archives.InputError) as caught:
                read(file, name)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < archives.MAX_RATIO * file.stat().st_size + archives.RATIO_SLACK
        return str(caught.value).removeprefix(f"{file}: {name}: ")

    return run


@pytest.mark.parametrize("name", ["input", "training"])
def test_headers_that_unpack_to_much(within_promise, tmp_path, name):
    size = 64 << 20
    member = b"\x93NUMPY\x02\x00" + struct.pack("<I", size) + b" " * size
    file = archive(tmp_path / "layer.npz", zipfile.ZIP_DEFLATED, **{name: member})
    assert within_promise(file, name).startswith("damaged or truncated (Header info length")


@pytest.mark.parametrize("name", ["input", "training"])
@pytest.mark.parametrize("text", [b"1,", b"{},", b"[a**-", b"a(),", b"a;", b"1+"])
def test_headers_that_take_memory_to_parse(within_promise, tmp_path, name, text):
    """The longest, of a file as small as can be."""
    header = (text * archives.MAX_HEADER)[: archives.MAX_HEADER]
    member = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header
    file = tmp_path / "layer.npz"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as opened:
        opened.writestr(f"{name}.npy", member)
    assert within_promise(file, name).startswith("damaged or truncated (")


@pytest.mark.parametrize("zeros", [200_000, 600_000])
def test_a_directory_that_lies_a_little(within_promise, tmp_path, zeros):
    """An entry of nearly as many bytes as its archive may unpack to, of which few are there."""
    file = tmp_path / "layer.npz"

    def packed(rows):
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as opened:
            opened.writestr("input.npy", npy((rows, 64), data=bytes(zeros)))
        return bytearray(file.read_bytes())

    rows = int(0.9 * 1032 * len(packed(1))) // 256
    content = packed(rows)
    struct.pack_into("<I", content, content.index(b"PK\x01\x02") + 24, 128 + 256 * rows)
    file.write_bytes(content)
    assert within_promise(file, "input").startswith("damaged or truncated (EOF")


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_compression(cheaply_refused, tmp_path, method):
    file = archive(tmp_path / "layer.npz", method)
    assert cheaply_refused(file) == (
        f"{file}: operator: compression method {method}; allowed: stored or deflated members, as "
        "NumPy writes them"
    )


def test_damaged_members(cheaply_refused, tmp_path):
    file = archive(tmp_path / "layer.npz", input=array(np.full((2, 3, 4), 0.1, F)))
    content = file.read_bytes()
    (number,) = struct.unpack("<I", struct.pack("<f", 0.1))
    damaged = content.replace(struct.pack("<I", number), struct.pack("<I", number + 1), 1)
    assert damaged != content
    file.write_bytes(damaged)
    assert cheaply_refused(file) == (
        f"{file}: input: damaged or truncated (Bad CRC-32 for file 'input.npy'); allowed: an "
        "intact .npz file"
    )


def test_names_become_neither_paths_nor_commands_to_the_terminal(cli, tmp_path):
    inner = tmp_path / "inner"
    inner.mkdir()
    value = array(np.zeros(3))
    names = {"../escaped": value, "/tmp/../absolute": value, "\x1b[31mred\n": value}
    file = archive(inner / "layer.npz", **names)
    result = cli("run", file)
    assert result.exit_code == 0
    assert result.stderr == (
        f"normgrad: note: {file}: not used: ../escaped, /tmp/../absolute, \\x1b[31mred\\n\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["inner"]
    assert [path.name for path in inner.iterdir()] == ["layer.npz"]


def test_markup_in_names_is_not_read(cli, tmp_path):
    file = archive(tmp_path / "layer.npz", **{"[bold]x[/nothing]": array(np.zeros(3))})
    result = cli("run", file, "-o", tmp_path / "[red]out[bold]")
    assert result.exit_code == 0
    assert "[bold]x[/nothing]" in result.stderr
    assert f"written    {tmp_path / '[red]out[bold]'}\n" in result.stdout


def header(tensors, data=bytes(8)):
    text = tensors if isinstance(tensors, bytes) else json.dumps(tensors).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(shape, start, end, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


@pytest.mark.parametrize(
    "content",
    [
        header({"input": entry([1 << 40], 0, 8)}),
        header({"input": entry([1 << 40], 0, 4 << 40)}),
        header({"input": entry([1 << 62, 1 << 62], 0, 8)}),
        header({"input": entry([-2], 0, 8)}),
        header({"input": entry([1], 4, 8)}),
        header({"a": entry([2], 0, 8), "b": entry([2], 0, 8)}),
        header({"a": entry([1], 0, 4)}),
        header({"input": entry([2], 0, 8, "F99")}),
        header({"__metadata__": {"eps": 1}}, b""),
        header(b'{"a":' + b"[" * 100_000),
        struct.pack("<Q", (1 << 64) - 1) + b"{}",
        struct.pack("<Q", 1 << 20) + b"{}",
    ],
    ids=range(12),
)
def test_safetensors_headers(cheaply_refused, tmp_path, content):
    file = tmp_path / "layer.safetensors"
    file.write_bytes(header({"input": entry([2], 0, 8)}))
    assert cheaply_refused(file).startswith(f"{file}: operator: not named; ")

    file.write_bytes(content)
    line = cheaply_refused(file)
    assert line.startswith(f"{file}: the header: damaged or truncated ("), line
    assert line.endswith("); allowed: an intact .safetensors file")


def test_dtypes_that_numpy_lacks(cli, refused, batch_norm, tmp_path):
    """An eight-bit tensor: in the way as an argument alone."""
    words = {"operator": "batch_norm_backward", "training": "true"}
    tensors = {
        "grad_out": entry([2, 3, 4], 0, 96),
        "input": entry([2, 3, 4], 96, 192),
        "weight": entry([3], 192, 195, "F8_E4M3"),
    }
    file = tmp_path / "layer.safetensors"
    file.write_bytes(header({"__metadata__": words, **tensors}, bytes(195)))
    assert refused(file) == (
        f"{file}: weight: dtype F8_E4M3; allowed: float32, float16, bfloat16, float64"
    )
    tensors["other"] = tensors.pop("weight")
    file.write_bytes(header({"__metadata__": words, **tensors}, bytes(195)))
    result = cli("run", file)
    assert result.exit_code == 0
    assert result.stderr == f"normgrad: note: {file}: not used: other\n"


def test_members_that_claim_to_be_packed_in_more_than_the_file(cheaply_refused, tmp_path):
    """zipfile would make room for what it is to read, all at once."""
    version_2 = b"\x93NUMPY\x02\x00\xff\xff\xff\xff{"
    file = archive(tmp_path / "layer.npz", input=version_2)
    content = bytearray(file.read_bytes())
    honest = sum(member.compress_size for member in zipfile.ZipFile(file).infolist())
    entry = content.rindex(b"input.npy") - 46
    assert content[entry:].startswith(b"PK\x01\x02")
    struct.pack_into("<I", content, entry + 20, 0xFFFFFFF0)
    file.write_bytes(content)
    packed = honest - len(version_2) + 0xFFFFFFF0
    assert cheaply_refused(file).startswith(f"{file}: the archive: {packed} bytes that claim to ")


def test_members_over_each_other(cheaply_refused, tmp_path):
    """One that is there once and named many times."""
    file = archive(tmp_path / "layer.npz", other=array(np.zeros(1000)))
    content = file.read_bytes()
    start = content.rindex(b"PK\x01\x02", 0, content.rindex(b"other.npy"))
    end = content.index(b"PK\x05\x06")
    entries = [content[start:end].replace(b"other.npy", b"othe%d.npy" % k) for k in range(10)]
    more = b"".join(entries)
    tail = bytearray(content[end:])
    count, size = struct.unpack_from("<HI", tail, 10)
    struct.pack_into("<HHI", tail, 8, count + 10, count + 10, size + len(more))
    file.write_bytes(content[:end] + more + tail)
    line = cheaply_refused(file)
    assert line.startswith(f"{file}: the archive: "), line


@pytest.mark.parametrize("kind", ["many entries", "many axes", "many words", "deep"])
def test_memory_for_headers(tmp_path, kind):
    """No more than is promised, of files that are nothing but header."""
    if kind == "many entries":
        content = header({f"{k:x}": entry([0], 0, 0) for k in range(20_000)}, b"")
    elif kind == "many axes":
        content = header({"a": entry([1] * 200_000, 0, 4)}, bytes(4))
    elif kind == "many words":
        content = header({"__metadata__": {f"{k:x}": "" for k in range(50_000)}}, b"")
    else:
        content = header(b'{"a":' + b"[" * 500_000)
    file = tmp_path / "layer.safetensors"
    file.write_bytes(content)
    tracemalloc.start()
    with contextlib.suppress(archives.InputError), archives.reading(file) as found:
        assert kind != "deep"
        assert len(found.names) + len(found.metadata) >= 1
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < archives.MAX_RATIO * len(content) + archives.RATIO_SLACK
