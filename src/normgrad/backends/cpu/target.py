"""The abilities of the processor that kernels are compiled for, as LLVM's code shows them."""

from __future__ import annotations

from functools import cache

from llvmlite import binding as llvm
from numba.core.registry import cpu_target


def _code_of(source: str) -> str:
    """The processor's code for a function in LLVM's language."""
    triple, name, features = cpu_target.target_context.codegen().magic_tuple()
    target = llvm.Target.from_triple(triple)
    machine = target.create_target_machine(cpu=name, features=features)
    return str(machine.emit_assembly(llvm.parse_assembly(source)))


@cache
def converts_halves() -> bool:
    """Whether it can convert float16.

    If not, LLVM calls functions of a compiler's runtime library. A process need not have it, and
    LLVM ends a process without it.
    """
    code = _code_of("""
        define float @widened(half %value) {
          %wide = fpext half %value to float
          ret float %wide
        }
    """)
    return "__extendhfsf2" not in code


@cache
def rounds_to_bfloat16() -> bool:
    """Whether it rounds float32 to bfloat16, to nearest even, in one instruction."""
    code = _code_of("""
        define <16 x bfloat> @rounded(<16 x float> %value) {
          %found = fptrunc <16 x float> %value to <16 x bfloat>
          ret <16 x bfloat> %found
        }
    """)
    return "vcvtneps2bf16" in code and has_many_registers()


@cache
def has_many_registers() -> bool:
    """Whether it has AVX-512's 32 vector registers, which come with registers for masks (%k1)."""
    code = _code_of("""
        define <8 x float> @larger(<8 x float> %a, <8 x float> %b) {
          %more = fcmp ogt <8 x float> %a, %b
          %sum = fadd <8 x float> %a, %b
          %found = select <8 x i1> %more, <8 x float> %sum, <8 x float> %b
          ret <8 x float> %found
        }
    """)
    return "%k" in code


@cache
def masks_halves() -> bool:
    """Whether it reads and writes some of a vector's 16-bit elements in one instruction.

    If not, LLVM reads and writes them one by one.
    """
    code = _code_of("""
        declare <32 x i16> @llvm.masked.load.v32i16.p0(ptr, i32, <32 x i1>, <32 x i16>)
        define <32 x i16> @read(ptr %from, <32 x i16> %other) {
          %mask = icmp sgt <32 x i16> %other, zeroinitializer
          %read = call <32 x i16> @llvm.masked.load.v32i16.p0(
            ptr %from, i32 1, <32 x i1> %mask, <32 x i16> %other)
          ret <32 x i16> %read
        }
    """)
    return "vmovdqu16" in code


@cache
def halves_vectors() -> bool:
    """Whether it has vectors of AVX-512, but computes their halves one after the other: a Zen 4."""
    _, name, _ = cpu_target.target_context.codegen().magic_tuple()
    return bool(name == "znver4")
