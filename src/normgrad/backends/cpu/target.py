"""The processor that kernels are compiled for, its abilities, and the levels that wheels know."""

from __future__ import annotations

import os
from functools import cache
from typing import Any, NamedTuple

from llvmlite import binding as llvm

#: Numba's variables that name a processor other than this machine's, and its features. If one is
#: set, nothing in the package is used. None of Numba's other settings has a say in kernels.
VARIABLES = "NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES"
#: The variable that names another machine than this one, as LLVM does, to compile for. Numba has no
#: such setting.
TRIPLE = "_NORMGRAD_TRIPLE"

_V3 = "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe"
_V4 = *_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"


class Level(NamedTuple):
    """A level of an architecture that wheels bring kernels for.

    Attributes:
        triple: LLVM's name of the machine.
        processor, more: LLVM's names of the processor, and of the features it has beside.
        needs: the features that a processor needs to run the kernels.
    """

    triple: str
    processor: str
    more: tuple[str, ...]
    needs: tuple[str, ...]

    @property
    def architecture(self) -> str:
        """The architecture, as wheels and Linux name it."""
        return _architecture(self.triple)


def _architecture(triple: str) -> str:
    return triple.partition("-")[0]


_X86 = "x86_64-unknown-linux-gnu"
_ARM = "aarch64-unknown-linux-gnu"
#: The levels by name, an architecture's best first. One of them rounds to bfloat16 in an
#: instruction. All that kernels use of Arm is in every aarch64: vectors, fused multiplication and
#: addition, and conversions of float16.
LEVELS = {
    "x86-64-v4+avx512bf16": Level(_X86, "x86-64-v4", ("avx512bf16",), (*_V4, "avx512bf16")),
    "x86-64-v4": Level(_X86, "x86-64-v4", (), _V4),
    "x86-64-v3": Level(_X86, "x86-64-v3", (), _V3),
    "armv8-a": Level(_ARM, "generic", (), ()),
}


class Processor(NamedTuple):
    """LLVM's names of the processor for which kernels are compiled, its features and machine."""

    name: str
    features: str
    triple: str


@cache
def processor() -> Processor:
    """This machine's processor, or the one that the variables name."""
    name, features = map(os.environ.get, VARIABLES)
    return Processor(
        llvm.get_host_cpu_name() if name is None else name,
        llvm.get_host_cpu_features().flatten() if features is None else features,
        os.environ.get(TRIPLE) or llvm.get_process_triple(),
    )


def settings() -> dict[str, str]:
    """All settings that kernels are compiled with, as environment variables."""
    return dict(zip((*VARIABLES, TRIPLE), processor(), strict=True))


def levels_here() -> list[str]:
    """The levels that this machine's processor has, the best first; none where variables decide."""
    if any(name in os.environ for name in VARIABLES):
        return []
    features, architecture = llvm.get_host_cpu_features(), _architecture(llvm.get_process_triple())
    return [
        name
        for name, level in LEVELS.items()
        if level.architecture == architecture
        and all(features.get(feature) for feature in level.needs)
    ]


def machine(**options: Any) -> Any:
    """LLVM's description of the processor, for emitting code."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    name, features, triple = processor()
    kind = llvm.Target.from_triple(triple)
    return kind.create_target_machine(cpu=name, features=features, **options)


def _code_has(text: str, source: str) -> bool:
    """Whether a text is in the processor's code for functions in LLVM's language."""
    return text in str(machine().emit_assembly(llvm.parse_assembly(source)))


@cache
def converts_halves() -> bool:
    """Whether it can convert float16, as every x86-64 processor since 2012 can (F16C).

    If not, LLVM calls functions of a compiler's runtime library. A process need not have it, and
    LLVM ends a process without it.
    """
    widen = "define float @f(half %a) { %b = fpext half %a to float ret float %b }"
    return not _code_has("__extendhfsf2", widen)


@cache
def rounds_to_bfloat16() -> bool:
    """Whether it rounds float32 to bfloat16, to nearest even, in one instruction."""
    narrow = """define <16 x bfloat> @f(<16 x float> %a) {
        %b = fptrunc <16 x float> %a to <16 x bfloat>
        ret <16 x bfloat> %b
    }"""
    return _code_has("vcvtneps2bf16", narrow) and has_many_registers()


@cache
def has_many_registers() -> bool:
    """Whether it has AVX-512's 32 vector registers, which come with registers for masks (%k1)."""
    select = """define <8 x float> @f(<8 x float> %a, <8 x float> %b) {
        %larger = fcmp ogt <8 x float> %a, %b
        %sum = fadd <8 x float> %a, %b
        %either = select <8 x i1> %larger, <8 x float> %sum, <8 x float> %b
        ret <8 x float> %either
    }"""
    return _code_has("%k", select)


@cache
def masks_halves() -> bool:
    """Whether it reads and writes some of a vector's 16-bit elements in one instruction.

    If not, LLVM reads and writes them one by one.
    """
    load = """declare <32 x i16> @llvm.masked.load.v32i16.p0(ptr, i32, <32 x i1>, <32 x i16>)
    define <32 x i16> @f(ptr %from, <32 x i16> %other) {
        %mask = icmp sgt <32 x i16> %other, zeroinitializer
        %a = call <32 x i16> @llvm.masked.load.v32i16.p0(
            ptr %from, i32 1, <32 x i1> %mask, <32 x i16> %other)
        ret <32 x i16> %a
    }"""
    return _code_has("vmovdqu16", load)


@cache
def halves_vectors() -> bool:
    """Whether it has vectors of AVX-512, but computes their halves one after the other: a Zen 4."""
    return processor().name == "znver4"
