"""CANN's dialect: legal calls of every product computed, everything else a listed status."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from aclnn_spec import BN, CODES, ELEMT, FLOATS, FORMATS, GN, HAS, NEW, OTHERS, PRIVATE, REDUCE
from fuzz import hostile, mistakes, oracle
from fuzz.ledger import cases, count
from hypothesis import given
from hypothesis import strategies as st

from normgrad.dialects import aclnn

SURFACE = "aclnn"
STATUSES = {161001, 161002, 361001, 561000, 561003}
#: What something unforeseen would be: of no case here.
_FORESEEN = STATUSES - {561000}

#: What the functional operator calls each parameter and result.
_THEIRS = {
    BN: ("batch_norm_backward", {
        "gradOut": "grad_out", "input": "input", "weight": "weight",
        "runningMean": "running_mean", "runningVar": "running_var", "saveMean": "save_mean",
        "saveInvstd": "save_invstd", "gradInput": "grad_input", "gradWeight": "grad_weight",
        "gradBias": "grad_bias"}),
    REDUCE: ("batch_norm_backward_reduce", {
        "gradOut": "grad_out", "input": "input", "mean": "mean", "invstd": "invstd",
        "weight": "weight", "sumDy": "sum_dy", "sumDyXmu": "sum_dy_xmu",
        "gradWeight": "grad_weight", "gradBias": "grad_bias"}),
    ELEMT: ("batch_norm_backward_elemt", {
        "gradOut": "grad_out", "input": "input", "mean": "mean", "invstd": "invstd",
        "weight": "weight", "sumDy": "sum_dy", "sumDyXmu": "sum_dy_xmu", "counter": "count",
        "gradInput": "grad_input"}),
    GN: ("group_norm_backward", {
        "gradOut": "grad_out", "input": "input", "mean": "mean", "rstd": "rstd", "gamma": "weight",
        "gradInput": "grad_input", "gradGammaOut": "grad_weight", "gradBetaOut": "grad_bias"}),
}  # fmt: skip
ORDER = {
    BN: "gradOut input weight runningMean runningVar saveMean saveInvstd training eps outputMask "
        "gradInput gradWeight gradBias",
    REDUCE: "gradOut input mean invstd weight inputG weightG biasG sumDy sumDyXmu gradWeight "
            "gradBias",
    ELEMT: "gradOut input mean invstd weight sumDy sumDyXmu counter gradInput",
    GN: "gradOut input mean rstd gamma N C HxW group outputMask gradInput gradGammaOut gradBetaOut",
}  # fmt: skip
_RANKED = {2: ("NC",), 3: ("NCL",), 4: ("NCHW",), 5: ("NCDHW",)}
_CHANNEL_LAST = {4: ("NHWC",), 5: ("NDHWC",)}
_DENSE = ("ND", "NC", "NCL", "NCHW", "NCDHW")


@dataclass(repr=False)
class Call(hostile.Short):
    """A legal call.

    Attributes:
        function: the operator.
        product: on which.
        views, formats: of the tensors that are there.
        scalars: everything else.
        axis: of the channels.
        sizes: N, C and HxW of group norm, as which its tensors are read.
        kind: of the values.
    """

    function: str
    product: str
    views: dict[str, hostile.View]
    formats: dict[str, str]
    scalars: dict[str, Any]
    axis: int
    sizes: tuple[int, ...]
    kind: str

    def __repr__(self) -> str:
        parts = {**self.views, **self.scalars, "formats": self.formats}
        shown = "".join(f"\n    {name}={value!r}" for name, value in parts.items())
        return f"{self.function} on {self.product}, {self.kind} values:{shown}"

    @property
    def operator(self) -> hostile.Operator:
        return hostile.OPERATORS[_THEIRS[self.function][0]]

    @property
    def wanted(self) -> dict[str, bool]:
        """The outputs, in order, and whether they are asked for."""
        theirs = self.operator.outputs
        names = [name for name in ORDER[self.function].split() if self.theirs(name) in theirs]
        if "outputMask" in self.scalars:
            return dict(zip(names, self.scalars["outputMask"], strict=True))
        if "inputG" in self.scalars:
            flags = [self.scalars[flag] for flag in ("inputG", "inputG", "weightG", "biasG")]
            return dict(zip(names, flags, strict=True))
        return dict.fromkeys(names, True)

    def theirs(self, name: str) -> str | None:
        return _THEIRS[self.function][1].get(name)

    def arguments(self) -> dict[str, Any]:
        """By name, in order."""
        made: dict[str, Any] = {}
        for name in ORDER[self.function].split():
            view = self.views.get(name)
            if name in self.scalars:
                made[name] = self.scalars[name]
            else:
                made[name] = None if view is None else acl_tensor(view, self.formats[name])
        return made

    def watched(self, masked: bool = True) -> hostile.Watched:
        """A watch on all memory; unless ``masked``, outputs that are not asked for may change."""
        names = [name for name, wanted in self.wanted.items() if wanted or not masked]
        outputs = [self.views[name] for name in names if name in self.views]
        return hostile.Watched([view.arena for view in self.views.values()], outputs)

    def read(self, name: str) -> np.ndarray:
        """A tensor as the operator reads it."""
        array = np.array(self.views[name].array)
        if self.function != GN:
            return array
        n, c, positions = self.sizes
        if name in ("gradOut", "input", "gradInput"):
            return array.reshape(n, c, positions)
        return array.reshape(
            (n, -1)
            if name in ("mean", "rstd") and n
            else (n, self.scalars["group"])
            if name in ("mean", "rstd")
            else (c,)
        )

    def inputs(self) -> dict[str, np.ndarray | None]:
        """What goes in, for the oracle."""
        names = {self.theirs(name): name for name in self.views}
        return {
            theirs: self.read(names[theirs]) if theirs in names else None
            for theirs in self.operator.tensors
        }

    def results(self) -> dict[str, np.ndarray | None]:
        return {
            str(self.theirs(name)): self.read(name) if wanted else None
            for name, wanted in self.wanted.items()
        }

    def check(self, before: dict[str, np.ndarray | None]) -> None:
        options = {"training": self.scalars.get("training"), "eps": self.scalars.get("eps"),
                   "num_groups": self.scalars.get("group")}  # fmt: skip
        options = {
            name: value
            for name, value in options.items()
            if name in self.operator.options and value is not None
        }
        axis = self.axis if self.function != GN else 1
        if self.function != GN:
            options["channel_axis"] = axis
        oracle.check(self.operator, before, options, axis, self.results())


def acl_tensor(view: hostile.View, order: str) -> Any:
    start = view.offset % view.itemsize
    return aclnn.aclCreateTensor(
        view.shape, CODES[view.dtype], view.steps, view.offset // view.itemsize, FORMATS[order],
        None, view.arena[start:],
    )  # fmt: skip


def _flat_shape(draw: Any, elements: int) -> tuple[int, ...]:
    """Any shape of as many elements."""
    sizes = []
    while elements > 1 and len(sizes) < 6:
        divisors = [n for n in range(2, elements + 1) if elements % n == 0]
        sizes.append(draw(st.sampled_from(divisors)))
        elements //= sizes[-1]
    if elements != 1:
        sizes.append(elements)
    ones = draw(st.integers(0, 8 - len(sizes)))
    for _ in range(ones):
        sizes.insert(draw(st.integers(0, len(sizes))), 1)
    return tuple(sizes)


@st.composite
def calls(draw: Any, function: str, products: Sequence[str] = (), negative: bool = True) -> Call:
    """A legal call, on any of the products that have the operator or on one of these.

    C allows no ``negative`` strides.
    """
    product = draw(st.sampled_from(products or HAS[function]))
    floats = FLOATS[product]
    dtype = draw(st.sampled_from(floats))
    kind = draw(st.sampled_from(hostile.KINDS_OF_VALUES))
    shape = draw(hostile.shapes(0 if function == GN else 2))
    axis, sizes = 1, ()
    formats = ["ND"]
    scalars: dict[str, Any] = {}
    if function == GN:
        sizes = tuple(draw(st.sampled_from([1, 2, 3, 4, 6, 2, 0])) for _ in range(3))
        n, channels, positions = sizes
        divisors = [each for each in range(1, channels + 1) if channels % each == 0] or [1, 3]
        group = draw(st.sampled_from(divisors))
        scalars = {"N": n, "C": channels, "HxW": positions, "group": group}
        shape = _flat_shape(draw, math.prod(sizes))
    elif function == BN:
        formats += _RANKED.get(len(shape), ())
        if product == NEW:
            formats += _CHANNEL_LAST.get(len(shape), ())
    else:
        formats += _DENSE
    order = draw(st.sampled_from(formats))
    if order in ("NHWC", "NDHWC"):
        axis = -1 % len(shape)
    if function != GN:
        channels = shape[axis]
        if function in (REDUCE, ELEMT) and not channels:
            shape, channels = (*shape[:1], 2, *shape[2:]), 2

    if function == BN:
        scalars["training"] = draw(st.booleans())
        scalars["eps"] = draw(st.sampled_from([1e-5, 1e-3, 0.0, -1e-5, math.nan, math.inf]))
        if kind in ("normal", "few"):
            scalars["eps"] = 1e-5
    if function in (BN, GN):
        mask = draw(st.lists(st.booleans(), min_size=3, max_size=3))
        scalars["outputMask"] = draw(st.sampled_from([list, tuple, aclnn.aclCreateBoolArray]))(mask)
    if function == REDUCE:
        scalars.update({name: draw(st.booleans()) for name in ("inputG", "weightG", "biasG")})

    def of_950(parameter: str, given: dict[str, hostile.View]) -> str:
        """The dtype of a per-channel tensor of the Ascend 950."""
        twin = {"runningVar": "runningMean", "saveInvstd": "saveMean"}.get(parameter)
        if twin in given:
            return given[twin].dtype
        if parameter == "gradBias":
            return str(draw(st.sampled_from(floats)))
        like = dtype
        if parameter == "gradWeight" and "weight" in given:
            like = given["weight"].dtype
        return str(draw(st.sampled_from([like, "float32"])))

    call = Call(function, product, {}, {}, scalars, axis, sizes, kind)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    optional = {"weight", "gamma", "runningMean", "runningVar", "saveMean", "saveInvstd"}
    for name in ORDER[function].split():
        if name in scalars:
            continue
        output = name in call.wanted
        asked = call.wanted.get(name, True)
        # What is not asked for may be there all the same; of batch norm it is checked too.
        if (name in optional or not asked) and draw(st.booleans()):
            continue
        data = name in ("gradOut", "input", "gradInput")
        its_dtype = dtype
        if data:
            its_shape: tuple[int, ...] = shape
            if function == ELEMT:
                its_dtype = draw(st.sampled_from(floats))
        elif name == "counter":
            its_shape = draw(hostile.shapes(1, 8))
            its_dtype = draw(st.sampled_from(["int32", "float16", "float32"]))
        elif name in ("mean", "rstd") and function == GN:
            its_shape = _flat_shape(draw, sizes[0] * scalars["group"])
        elif name == "gamma":
            its_shape = _flat_shape(draw, channels)
        elif name in ("gradGammaOut", "gradBetaOut"):
            gamma = call.views.get("gamma")
            its_shape = (channels,) if gamma is None else gamma.shape
        else:
            its_shape = (channels,)
            if function == BN and product == NEW:
                its_dtype = of_950(name, call.views)
            elif function in (REDUCE, ELEMT):
                its_dtype = draw(st.sampled_from(floats))
        if name.startswith("save") and not scalars["training"] and draw(st.booleans()):
            its_shape = (0,)
        places = [
            view
            for source in ("gradOut", "input")
            if name == "gradInput" and asked
            and (view := call.views[source]).dtype == its_dtype
            and hostile.is_apart(view.shape, view.strides)
        ]  # fmt: skip
        if places and draw(st.integers(0, 3)) == 0:
            view = draw(st.sampled_from(places))
        else:
            view = draw(hostile.views(its_shape, its_dtype, output=output, negative=negative))
            if not output:
                fill_as = call.theirs(name) in hostile.SPREADS
                hostile.fill(view, rng, kind, fill_as)
        call.views[name] = view
        call.formats[name] = "ND"
        if function == BN and data:
            call.formats[name] = order
        elif function != BN or not data:
            call.formats[name] = draw(st.sampled_from(_DENSE))
    if function == REDUCE:  # these two alone are compared
        call.formats["input"] = call.formats["gradOut"]
    return call


def two_phases(call: Call, arguments: dict[str, Any], room: int = 0) -> np.ndarray:
    """Phase 1 and phase 2; the workspace, with what is watched beside it."""
    with aclnn.product(call.product):
        phase_1 = getattr(aclnn, f"{call.function}GetWorkspaceSize")
        size, executor = phase_1(*arguments.values())
        memory = np.full(64 + room + size + 64, 0xA5, np.uint8)
        workspace = memory[64 + room : 64 + room + size]
        getattr(aclnn, call.function)(workspace, size, executor, None)
    assert (memory[: 64 + room] == 0xA5).all()
    assert (memory[64 + room + size :] == 0xA5).all()
    with pytest.raises(aclnn.AclnnError, match="executor: used already") as caught:
        getattr(aclnn, call.function)(workspace, size, executor, None)
    assert caught.value.status == 161002
    return memory


@pytest.mark.parametrize("function", ORDER)
@cases(25)
@given(st.data())
def test_legal(function: str, data: Any) -> None:
    call = data.draw(calls(function))
    before, watched = call.inputs(), call.watched()
    two_phases(call, call.arguments(), data.draw(st.integers(0, 70)))
    watched.check_gaps()
    call.check(before)
    count(SURFACE, "accepted")


_NO_DTYPES = sorted(set(CODES) - {"float32", "float16", "bfloat16", "int32"})


def _acl_tensor(shape: Any, dtype: str, order: str, elements: int | None = None) -> Any:
    size = math.prod(shape) if elements is None else elements
    memory = np.zeros(max(16, 16 * size) if elements is None else size, np.uint8)
    return aclnn.aclCreateTensor(shape, CODES[dtype], None, 0, FORMATS[order], None, memory)


def _mistake(draw: Any, call: Call, made: dict[str, Any]) -> tuple[int, str | None]:
    """Makes one thing wrong; the status, and the parameter that the error names."""
    required = {"gradOut", "input", "mean", "invstd", "rstd", "sumDy", "sumDyXmu", "counter"}
    wanted = [name for name, asked in call.wanted.items() if asked]
    needed = {name for name in call.views if name in required and name not in call.wanted}
    seen = [name for name in call.views if name in wanted or name not in call.wanted]
    way = draw(st.sampled_from(
        ["null", "dtype", "format", "shape", "no tensor", "memory", "product", "mask", "flag"]
    ))  # fmt: skip
    if way == "product":
        others = [name for name in HAS[BN] if name not in HAS[call.function]]
        call.product = draw(st.sampled_from([*others, *OTHERS]))
        return 561003, None
    if way == "mask" and "outputMask" in made:
        made["outputMask"] = draw(
            st.sampled_from([None, [], [False] * 2, [False] * 4, 3, "yes", [2, 0, 1], object()])
        )
        return (161001 if made["outputMask"] is None else 161002), "outputMask"
    flags = [name for name in ("training", "inputG", "weightG", "biasG") if name in made]
    if way == "flag" and flags:
        name = draw(st.sampled_from(flags))
        made[name] = draw(st.sampled_from([1.5, "yes", object(), 2, []]))
        return 161002, name
    if way == "flag" and call.function == GN:
        name = draw(st.sampled_from(["N", "C", "HxW", "group"]))
        made[name] = draw(st.sampled_from([-1, 1.5, "3", object(), -(2**63)]))
        return 161002, None  # others are compared with it
    if way == "null":
        name = draw(st.sampled_from(sorted({*needed, *wanted})))
        made[name] = None
        return 161001, name
    name = draw(st.sampled_from(seen))
    view = call.views[name]
    # The others follow the first, which one of the two may be held to be.
    named = None if name in ("gradOut", "input") or call.function == GN else name
    if way == "no tensor":
        made[name] = draw(st.sampled_from([3, "tensor", object(), np.zeros(3), [1.0], b"", True]))
        return 161002, name
    if way == "format":
        made[name] = _acl_tensor(view.shape, view.dtype, draw(st.sampled_from(PRIVATE)))
        return 161002, named
    if way == "shape":
        # Of group norm's tensors the number of elements counts, and no shape.
        others = [(*view.shape, 2), (7, 5, 3)]
        others = [each for each in others if math.prod(each) != math.prod(view.shape)]
        shape = draw(st.sampled_from([*others, (1,) * 9]))
        made[name] = _acl_tensor(shape, view.dtype, call.formats[name])
        if name == "counter":
            made[name] = _acl_tensor((1,) * 9, view.dtype, "ND")
        return 161002, None if named is None or name == "gamma" else name
    if way == "memory" and math.prod(view.shape):
        itemsize = hostile.DTYPES[view.dtype].itemsize
        most = math.prod(view.shape) * itemsize - 1
        made[name] = _acl_tensor(view.shape, view.dtype, call.formats[name], most)
        return 161002, name
    made[name] = _acl_tensor(view.shape, draw(st.sampled_from(_NO_DTYPES)), call.formats[name])
    # The others' dtypes follow gradOut's, or weight's.
    return 161002, None if named is None or name in ("weight", "runningMean", "saveMean") else name


@pytest.mark.parametrize("function", ORDER)
@cases(15)
@given(st.data())
def test_one_thing_wrong(function: str, data: Any) -> None:
    call = data.draw(calls(function))
    made = call.arguments()
    status, parameter = _mistake(data.draw, call, made)
    watched = call.watched()
    with pytest.raises(aclnn.AclnnError) as caught:
        two_phases(call, made)
    watched.check_untouched()
    assert caught.value.status == status, str(caught.value)
    if parameter is not None:
        assert caught.value.parameter == parameter, str(caught.value)
    count(SURFACE, f"refused: {status}")


@pytest.mark.parametrize("function", ORDER)
@cases(4)
@given(st.data())
def test_second_phase(function: str, data: Any) -> None:
    """Wrong workspaces, sizes and executors; then a right call with the same executor."""
    call = data.draw(calls(function))
    with aclnn.product(call.product):
        size, executor = getattr(aclnn, f"{function}GetWorkspaceSize")(*call.arguments().values())
    run = getattr(aclnn, function)
    workspace = np.zeros(size, np.uint8)
    before, watched = call.inputs(), call.watched()
    wrong: list[tuple[int, tuple[Any, ...]]] = [
        (161001, (workspace, size, None, None)),
        (161002, (workspace, size, 3, None)),
        (161002, (workspace, -1, executor, None)),
        (161002, (workspace, "many", executor, None)),
        (161002, (workspace, mistakes.Raises(), executor, None)),
    ]
    if size:
        frozen = np.zeros(size, np.uint8)
        frozen.flags.writeable = False
        wrong += [
            (161001, (None, size, executor, None)),
            (161002, (workspace, size - 1, executor, None)),
            (161002, (workspace[:-1], size, executor, None)),
            (161002, (frozen, size, executor, None)),
            (161002, (np.zeros(2 * size, np.uint8)[::2], size, executor, None)),
            (161002, (size, size, executor, None)),
        ]
    for status, arguments in wrong:
        with pytest.raises(aclnn.AclnnError) as caught:
            run(*arguments)
        assert caught.value.status == status, str(caught.value)
        watched.check_untouched()
        count(SURFACE, f"refused: {status}")
    run(workspace, size, executor, None)
    watched.check_gaps()
    call.check(before)
    count(SURFACE, "accepted")


_FLAGS = {"outputMask", "inputG", "weightG", "biasG"}


@pytest.mark.parametrize("function", ORDER)
@cases(8)
@given(st.data())
def test_garbage(function: str, data: Any) -> None:
    call = data.draw(calls(function))
    made = call.arguments()
    junk = hostile.Call(call.operator, dict(call.views), {}, 1, None, "normal", "numpy")
    replaced = data.draw(st.lists(st.sampled_from(sorted(made)), min_size=1, unique=True))
    for argument in replaced:
        made[argument] = data.draw(mistakes.garbage(junk))
    # NumPy's True, as a flag, asks for an output.
    watched = call.watched(masked=_FLAGS.isdisjoint(replaced))
    try:
        two_phases(call, made)
    except aclnn.AclnnError as error:
        watched.check_untouched()
        count(SURFACE, f"refused: {_foreseen(error)}")
    else:
        watched.check_gaps()
        count(SURFACE, "accepted")


def _foreseen(error: aclnn.AclnnError) -> int:
    assert error.status in _FORESEEN, str(error)
    return int(error.status)


_SIZES = st.sampled_from([0, 1, 2, 3, -1, 2**31, 2**62, 2**64, 2**100, 1.5, None, "2", True])
_SEQUENCES = st.one_of(
    st.lists(_SIZES, max_size=9),
    st.sampled_from([None, 3, "12", b"12", {}, np.zeros(3), object(), mistakes.Raises()]),
)
_NUMBERS = st.sampled_from([0, 1, 2, 27, -1, 99, 2**70, "ND", None, 1.5, object(), np.zeros(2)])


@cases(16)
@given(st.data())
def test_tensors_of_anything(data: Any) -> None:
    """A tensor, which phase 1 then looks at, or 161002."""
    call = data.draw(calls(data.draw(st.sampled_from(list(ORDER)))))
    drawn = [data.draw(each) for each in (_SEQUENCES, _NUMBERS, _SEQUENCES, _SIZES, _NUMBERS)]
    memory = data.draw(
        st.sampled_from([None, np.zeros(64, np.uint8), bytearray(64), 3, "text", np.zeros(2, "O"),
                         b"12345678", mistakes.Raises(), np.zeros((4, 4))[:, :2]])
    )  # fmt: skip
    made, watched = call.arguments(), call.watched()
    try:
        tensor = aclnn.aclCreateTensor(*drawn, data.draw(_SEQUENCES), memory)
        made[data.draw(st.sampled_from(list(call.views)))] = tensor
        two_phases(call, made)
    except aclnn.AclnnError as error:
        watched.check_untouched()
        count(SURFACE, f"refused: {_foreseen(error)}")
    else:
        count(SURFACE, "accepted")
