"""Building: what is exported, what the headers say, and what is told when it cannot be done."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from normgrad.cli.app import app
from normgrad.dialects.c import build, declarations
from normgrad.dialects.c.declarations import DIALECTS, HEADERS, functions_of
from normgrad.support import compilers

from .conftest import LANGUAGES, STRICT, run

ACL, INFINI = DIALECTS
EXAMPLES = Path(__file__).parents[3] / "examples" / "capi"

#: From the documents: every file, and every function.
FILES = """
    include/acl/acl.h include/acl/acl_base.h include/acl/acl_rt.h
    include/aclnn/acl_meta.h include/aclnn/aclnn_base.h
    include/aclnnop/aclnn_batch_norm_backward.h include/aclnnop/aclnn_batch_norm_elemt_backward.h
    include/aclnnop/aclnn_batch_norm_backward_reduce.h include/aclnnop/aclnn_group_norm_backward.h
    include/aclnnop/aclnn_batch_norm_stats.h include/aclnnop/aclnn_batch_norm_elemt.h
    include/aclnnop/aclnn_batch_norm_gather_stats_with_counts.h include/aclnnop/aclnn_rms_norm.h
    include/infinicore.h include/infinirt.h include/infiniop.h include/infiniop/handle.h
    include/infiniop/tensor_descriptor.h include/infiniop/operator_descriptor.h
    include/infiniop/ops/batch_norm_backward.h
    lib/libascendcl.so lib/libnnopbase.so lib/libopapi.so lib/libinfiniop.so lib/libinfinirt.so
    lib/libopapi_nn.so lib/libopapi_math.so bin/setenv.bash set_env.sh
    lib/lsan.supp
    include/hccl/hccl.h include/hccl/hccl_types.h lib/libhccl.so
    lib/libacl_op_compiler.so lib/libacl_tdt_channel.so lib/libmsprofiler.so
    lib/libnormgrad_aclnn.so lib/libnormgrad_infiniop.so
    lib/pkgconfig/normgrad-aclnn.pc lib/pkgconfig/normgrad-infiniop.pc
    lib/cmake/normgrad-aclnn/normgrad-aclnn-config.cmake include/normgrad_absent.h
    lib/cmake/normgrad-infiniop/normgrad-infiniop-config.cmake
    """
FUNCTIONS = """
    aclInit aclFinalize aclrtSetDevice aclrtResetDevice aclrtGetDevice aclrtGetDeviceCount
    aclrtGetRunMode aclrtGetSocName aclrtGetMemInfo aclrtCreateEvent aclrtDestroyEvent
    aclrtRecordEvent aclrtSynchronizeEvent aclrtStreamWaitEvent aclrtEventElapsedTime
    aclrtCreateContext aclrtDestroyContext aclrtSetCurrentContext aclrtCreateStream
    aclrtDestroyStream aclrtSynchronizeStream aclrtSynchronizeDevice aclrtMalloc aclrtFree
    aclrtMallocHost aclrtFreeHost aclrtMemcpy aclrtMemcpyAsync aclrtMemset aclrtCtxSetSysParamOpt
    aclCreateTensor aclCreateBoolArray aclDestroyTensor aclDestroyBoolArray aclGetViewShape
    aclGetViewStrides aclGetDataType aclGetFormat aclDataTypeSize aclFloatToFloat16
    aclFloat16ToFloat aclSetAclOpExecutorRepeatable aclDestroyAclOpExecutor aclGetRecentErrMsg
    aclSetTensorAddr aclSetRawTensorAddr aclGetRawTensorAddr aclInitTensor AclSetInputTensorAddr
    AclSetOutputTensorAddr aclSetDynamicTensorAddr aclSetDynamicInputTensorAddr
    aclSetDynamicOutputTensorAddr aclrtCtxGetSysParamOpt aclrtSetSysParamOpt aclrtGetSysParamOpt
    aclCreateScalar aclCreateIntArray aclCreateFloatArray aclCreateTensorList
    aclCreateScalarList aclDestroyScalar aclDestroyIntArray aclDestroyFloatArray
    aclDestroyTensorList aclDestroyScalarList aclGetIntArraySize aclGetFloatArraySize
    aclGetBoolArraySize aclGetTensorListSize aclGetScalarListSize aclnnInit aclnnFinalize
    aclrtSynchronizeStreamWithTimeout aclrtMemsetAsync aclrtGetCurrentContext
    aclrtCreateStreamWithConfig aclrtCreateEventWithFlag aclrtQueryEventStatus aclrtMemcpy2d
    aclnnBatchNormBackwardGetWorkspaceSize aclnnBatchNormBackward
    aclnnBatchNormReduceBackwardGetWorkspaceSize aclnnBatchNormReduceBackward
    aclnnBatchNormElemtBackwardGetWorkspaceSize aclnnBatchNormElemtBackward
    aclnnGroupNormBackwardGetWorkspaceSize aclnnGroupNormBackward
    aclnnBatchNormStatsGetWorkspaceSize aclnnBatchNormStats
    aclnnBatchNormGatherStatsWithCountsGetWorkspaceSize aclnnBatchNormGatherStatsWithCounts
    aclnnBatchNormElemtGetWorkspaceSize aclnnBatchNormElemt
    aclnnRmsNormGetWorkspaceSize aclnnRmsNorm
    infinirtInit infinirtGetDeviceCount infinirtGetAllDeviceCount infinirtSetDevice
    infinirtGetDevice infinirtDeviceSynchronize infinirtStreamCreate infinirtStreamDestroy
    infinirtStreamSynchronize infinirtMalloc infinirtMallocHost infinirtFree infinirtFreeHost
    infinirtMemcpy infinirtMemcpyAsync infinirtMemset infinirtMemsetAsync infinirtMallocAsync
    infinirtFreeAsync infinirtEventCreate infinirtEventRecord infinirtEventSynchronize
    infinirtEventDestroy infinirtEventElapsedTime
    infiniopCreateHandle infiniopDestroyHandle infiniopCreateTensorDescriptor
    infiniopDestroyTensorDescriptor infiniopCreateBatchNormBackwardDescriptor
    infiniopGetBatchNormBackwardWorkspaceSize infiniopBatchNormBackward
    infiniopDestroyBatchNormBackwardDescriptor
    """

#: From the documents: numbers, as a C compiler has to see them.
NUMBERS = {
    "aclnn": """
        ACL_SUCCESS 0 ACL_ERROR_INVALID_PARAM 100000 ACL_ERROR_UNINITIALIZE 100001
        ACL_ERROR_REPEAT_INITIALIZE 100002 ACL_ERROR_RT_PARAM_INVALID 107000
        ACL_ERROR_RT_MEMORY_ALLOCATION 207001 ACL_ERROR_NONE 0 ACL_ERROR_RT_CONTEXT_NULL 107002
        ACL_ERROR_INVALID_FILE 100003 ACL_ERROR_REPEAT_FINALIZE 100037
        ACL_ERROR_RT_STREAM_ABORT 107023 ACL_ERROR_RT_DEVICE_OOM 207018
        ACL_ERROR_RT_EVENT_NOT_COMPLETE 507006 ACLNN_ERR_INNER_NULLPTR 561103
        ACLNN_ERR_INNER_ATTR_LEN_NOT_ENOUGH 561115
        ACL_DT_UNDEFINED -1 ACL_FLOAT 0 ACL_FLOAT16 1 ACL_INT8 2 ACL_INT32 3 ACL_UINT8 4
        ACL_INT16 6 ACL_UINT16 7 ACL_UINT32 8 ACL_INT64 9 ACL_UINT64 10 ACL_DOUBLE 11 ACL_BOOL 12
        ACL_STRING 13 ACL_COMPLEX64 16 ACL_COMPLEX128 17 ACL_BF16 27
        ACL_FORMAT_UNDEFINED -1 ACL_FORMAT_NCHW 0 ACL_FORMAT_NHWC 1 ACL_FORMAT_ND 2
        ACL_FORMAT_NC1HWC0 3 ACL_FORMAT_FRACTAL_Z 4 ACL_FORMAT_NC1HWC0_C04 12 ACL_FORMAT_HWCN 16
        ACL_FORMAT_NDHWC 27 ACL_FORMAT_FRACTAL_NZ 29 ACL_FORMAT_NCDHW 30 ACL_FORMAT_NDC1HWC0 32
        ACL_FORMAT_NC 35 ACL_FORMAT_NCL 47
        ACL_MEMCPY_HOST_TO_HOST 0 ACL_MEMCPY_HOST_TO_DEVICE 1 ACL_MEMCPY_DEVICE_TO_HOST 2
        ACL_MEMCPY_DEVICE_TO_DEVICE 3
        ACL_MEM_MALLOC_HUGE_FIRST 0 ACL_MEM_MALLOC_HUGE_ONLY 1 ACL_MEM_MALLOC_NORMAL_ONLY 2
        ACL_OPT_DETERMINISTIC 0
        ACLNN_SUCCESS 0 ACLNN_ERR_PARAM_NULLPTR 161001 ACLNN_ERR_PARAM_INVALID 161002
        ACLNN_ERR_RUNTIME_ERROR 361001 ACLNN_ERR_INNER 561000
        ACLNN_ERR_INNER_FIND_KERNEL_ERROR 561003
        """,
    "infiniop": """
        INFINI_STATUS_SUCCESS 0 INFINI_STATUS_INTERNAL_ERROR 1 INFINI_STATUS_NOT_IMPLEMENTED 2
        INFINI_STATUS_BAD_PARAM 3 INFINI_STATUS_NULL_POINTER 4
        INFINI_STATUS_DEVICE_TYPE_NOT_SUPPORTED 5 INFINI_STATUS_DEVICE_NOT_FOUND 6
        INFINI_STATUS_DEVICE_NOT_INITIALIZED 7 INFINI_STATUS_DEVICE_ARCHITECTURE_NOT_SUPPORTED 8
        INFINI_STATUS_BAD_TENSOR_DTYPE 10 INFINI_STATUS_BAD_TENSOR_SHAPE 11
        INFINI_STATUS_BAD_TENSOR_STRIDES 12 INFINI_STATUS_INSUFFICIENT_WORKSPACE 13
        INFINI_DEVICE_CPU 0 INFINI_DEVICE_NVIDIA 1 INFINI_DEVICE_CAMBRICON 2 INFINI_DEVICE_ASCEND 3
        INFINI_DEVICE_METAX 4 INFINI_DEVICE_MOORE 5 INFINI_DEVICE_ILUVATAR 6 INFINI_DEVICE_KUNLUN 7
        INFINI_DEVICE_HYGON 8 INFINI_DEVICE_QY 9 INFINI_DEVICE_ALI 10 INFINI_DEVICE_TYPE_COUNT 11
        INFINI_DTYPE_INVALID 0 INFINI_DTYPE_BYTE 1 INFINI_DTYPE_BOOL 2 INFINI_DTYPE_I8 3
        INFINI_DTYPE_I16 4 INFINI_DTYPE_I32 5 INFINI_DTYPE_I64 6 INFINI_DTYPE_U8 7
        INFINI_DTYPE_U16 8 INFINI_DTYPE_U32 9 INFINI_DTYPE_U64 10 INFINI_DTYPE_F8 11
        INFINI_DTYPE_F16 12 INFINI_DTYPE_F32 13 INFINI_DTYPE_F64 14 INFINI_DTYPE_C16 15
        INFINI_DTYPE_C32 16 INFINI_DTYPE_C64 17 INFINI_DTYPE_C128 18 INFINI_DTYPE_BF16 19
        INFINIRT_MEMCPY_H2H 0 INFINIRT_MEMCPY_H2D 1 INFINIRT_MEMCPY_D2H 2 INFINIRT_MEMCPY_D2D 3
        """,
}


def test_everything_that_the_documents_name_is_there(libraries):
    files = {
        str(path.relative_to(libraries.out)) for path in libraries.out.rglob("*") if path.is_file()
    }
    assert files == set(FILES.split()) | {
        f"include/{header.path}" for header in HEADERS if header.stubs
    }
    exported = {
        function.name
        for dialect in DIALECTS
        for library in dialect.libraries
        for function in functions_of(library)
    }
    assert set(FUNCTIONS.split()) - exported == set()


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda each: each.name)
def test_a_library_exports_what_its_headers_declare_and_nothing_else(libraries, dialect):
    if shutil.which("nm") is None:
        pytest.skip("no nm")
    path = libraries.out / "lib" / f"lib{dialect.library}.so"
    done = subprocess.run(
        ["nm", "-D", "--defined-only", path], capture_output=True, text=True, check=True
    )
    symbols = {line.split()[-1] for line in done.stdout.splitlines()}
    headers = [header for header in HEADERS if header.library in dialect.libraries]
    declared = [each.name for header in headers for each in (*header.functions, *header.stubs)]
    assert symbols == set(declared)
    assert len(declared) == len(symbols)


@pytest.mark.parametrize(
    "standard", ["c99", "gnu11", "c17", "c2x", "gnu2x", "c++11", "c++20"], ids=str
)
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_headers_in_every_standard(libraries, tmp_path, compiler, standard):
    """With strict prototypes too."""
    compiler = {"gcc": "g++", "clang": "clang++"}[compiler] if "++" in standard else compiler
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler}")
    source = tmp_path / ("host.cpp" if "++" in standard else "host.c")
    includes = "".join(f'#include "{header.path}"\n' for header in HEADERS)
    source.write_text(f"{includes}int main(void) {{ return 0; }}\n")
    strict = [] if "++" in standard else ["-Wstrict-prototypes"]
    command = [compiler, f"-std={standard}", *STRICT, *strict, "-fsyntax-only", source]
    done = subprocess.run(
        [*command, f"-I{libraries.out}/include"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.every_case
@pytest.mark.parametrize("suffix", LANGUAGES)
@pytest.mark.parametrize(
    "header", [each.path for each in HEADERS if each.functions or not each.stubs]
)
def test_a_header_stands_alone(libraries, tmp_path, header, suffix):
    """Included twice, first and alone, in C11 and C++17."""
    source = tmp_path / f"host{suffix}"
    source.write_text(f'#include "{header}"\n#include "{header}"\nint main(void) {{ return 0; }}\n')
    dialect = "infiniop" if header.startswith("infini") else "aclnn"
    libraries.compile(source, tmp_path / "host", dialect)


def test_programs_can_tell_normgrad_from_infinicore(libraries, tmp_path):
    source = tmp_path / "host.c"
    source.write_text(
        '#include "infinirt.h"\n#ifndef NORMGRAD_CAPI\n#error "no macro"\n#endif\n'
        "int main(void) { return normgradGetRecentErrMsg() == 0; }\n"
    )
    libraries.compile(source, tmp_path / "host", "infiniop")


@pytest.mark.parametrize("suffix", LANGUAGES)
def test_all_headers_stand_together(libraries, tmp_path, suffix):
    source = tmp_path / f"host{suffix}"
    includes = "".join(f'#include "{header.path}"\n' for header in HEADERS)
    source.write_text(f"{includes}int main(void) {{ return 0; }}\n")
    libraries.compile(source, tmp_path / "host")


ABSENT = """
#include <stdio.h>
#include "acl/acl.h"
#include "acl/acl_op_compiler.h"
#include "acl/acl_prof.h"
#include "aclnnop/aclnn_add.h"
#include "hccl/hccl.h"

static void say(int status) { printf("%d %s\\n", status, aclGetRecentErrMsg()); }

int main(void)
{
    uint64_t size = 0;
    aclOpExecutor *executor = NULL;
    aclTensor *tensor = NULL;
    uint32_t model;
    aclopAttr *attributes = aclopCreateAttr();
    say(attributes != NULL);
    for (int i = 0; i < 2; ++i)
        say(aclmdlLoadFromFile("model.om", &model));
    say(aclnnAddGetWorkspaceSize(tensor, tensor, (aclScalar *)NULL, tensor, &size, &executor));
    say(aclnnAdd((void *)NULL, size, executor, (aclrtStream)NULL));
    say(HcclBatchSendRecv(NULL, 0, (HcclComm)NULL, (aclrtStream)NULL));
    return ACL_COMPLEX32 != 33 || ACL_MEM_LOCATION_TYPE_DEVICE != 1 || ACL_MEMCPY_DEFAULT != 4;
}
"""


@pytest.mark.parametrize("suffix", LANGUAGES)
def test_what_is_absent_links_and_says_so(libraries, tmp_path, suffix):
    source = tmp_path / f"host{suffix}"
    source.write_text(ABSENT)
    program = libraries.compile(source, tmp_path / "host", extra=["-lacl_op_compiler"])
    done = run(program)
    all_there = "`normgrad capi functions` lists"
    operators = ", ".join(
        name.removesuffix("GetWorkspaceSize")
        for function in functions_of("opapi")
        if (name := function.name).endswith("GetWorkspaceSize")
    )
    said = [line.split(" ", 1) for line in done.stdout.splitlines()]
    assert [status for status, _ in said] == ["0", "200001", "200001", "561003", "361001", "5"]
    assert said[0][1].startswith("normgrad has no aclopCreateAttr; it has: ")
    assert said[1][1].endswith(all_there)
    assert said[3][1] == f"normgrad has no aclnnAddGetWorkspaceSize; it has: {operators}"
    assert "aclnnGroupNormBackward" in operators
    # Each is printed once.
    assert done.stderr.splitlines() == [said[at][1] for at in (0, 1, 3, 4, 5)]
    assert done.returncode == 0
    assert run(program, env={"NORMGRAD_CAPI_REPORT": "error"}).returncode == 1


def test_no_stub_is_a_function():
    functions = {each.name for header in HEADERS for each in header.functions}
    stubs = [each.name for header in HEADERS for each in header.stubs]
    assert functions & set(stubs) == set()
    assert len(set(stubs)) == len(stubs)


def test_functions_and_needs(libraries, tmp_path):
    listed = invoke("functions").stdout.splitlines()
    assert "acl/acl_rt.h" in listed
    assert "  aclnnBatchNormBackward" in listed
    assert "  aclnnAdd" not in listed
    assert "  aclnnAdd" in invoke("functions", "--stubs").stdout.splitlines()
    source = tmp_path / "host.c"
    source.write_text(
        """
        #include "acl/acl.h"
        #include "aclnnop/aclnn_add.h"
        int aclrtOfNobody(void);
        const char *names[] = {"aclnnOfNobody", "aclrtMemcpy", "aclDataType"};
        int main(void) { return aclInit(NULL) + aclnnAdd() + aclrtOfNobody(); }
        """
    )
    target = tmp_path / "host.o"
    subprocess.run(["gcc", "-c", source, f"-I{libraries.out}/include", "-o", target], check=True)
    done = invoke("needs", target)
    assert done.exit_code == 1
    assert done.stdout.splitlines() == [
        f"{target}: 2 of 5 functions are available",
        "  stub: aclnnAdd",
        "  missing: aclnnOfNobody",
        "  missing: aclrtOfNobody",
    ]
    program = libraries.compile(EXAMPLES / "batch_norm_backward.c", tmp_path / "right")
    done = invoke("needs", program)
    assert (done.exit_code, "functions are available" in done.stdout) == (0, True)
    source.write_text("no object")
    done = invoke("needs", source)
    message = f"normgrad: {source}: nm: {source}: file format not recognized\n"
    assert (done.exit_code, done.stderr) == (2, message)


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda each: each.name)
def test_numbers(libraries, tmp_path, dialect):
    words = NUMBERS[dialect.name].split()
    pairs = list(zip(words[::2], words[1::2], strict=True))
    headers = [
        each.path
        for each in HEADERS
        if (each.functions or not each.stubs)
        and each.path.startswith("infini") == (dialect is INFINI)
    ]
    source = tmp_path / "host.c"
    source.write_text(
        "\n".join(f'#include "{header}"' for header in headers)
        + "\n"
        + "\n".join(f'_Static_assert((int){name} == {value}, "{name}");' for name, value in pairs)
        + "\nint main(void) { return 0; }\n"
    )
    libraries.compile(source, tmp_path / "host", dialect.name)


def test_sizes_and_halves(libraries, tmp_path):
    source = tmp_path / "host.c"
    source.write_text(
        """
        #include <stdio.h>
        #include "acl/acl.h"
        int main(void)
        {
            const float values[] = {0, 1, -2, 65504, 65520, 1e-8f, 5.9604645e-8f, 0.1f};
            for (int i = 0; i < 8; ++i)
                printf("%04x ", aclFloatToFloat16(values[i]));
            printf("%g %g %g", aclFloat16ToFloat(0x3555), aclFloat16ToFloat(0xfc00),
                   aclFloat16ToFloat(1));
            const aclDataType types[] = {ACL_FLOAT, ACL_FLOAT16, ACL_BF16, ACL_INT32, ACL_BOOL,
                                         ACL_COMPLEX128, ACL_STRING, ACL_DT_UNDEFINED};
            for (int i = 0; i < 8; ++i)
                printf(" %zu", aclDataTypeSize(types[i]));
            return 0;
        }
        """
    )
    program = libraries.compile(source, tmp_path / "host")
    found = subprocess.run([program], capture_output=True, text=True, check=True).stdout.split()
    assert found[:8] == ["0000", "3c00", "c000", "7bff", "7c00", "0000", "0001", "2e66"]
    assert found[8:11] == ["0.333252", "-inf", "5.96046e-08"]
    assert found[11:] == ["4", "2", "2", "4", "1", "16", "0", "0"]


def test_a_library_of_another_version_says_so(libraries, monkeypatch, tmp_path):
    monkeypatch.setattr(build, "digest", lambda: "0123456789abcdef")
    monkeypatch.setattr(build, "_FLAGS", [*build._FLAGS, "-O0"])
    build.build(tmp_path)
    library = tmp_path / "lib" / "libascendcl.so"
    code = f"import ctypes; print(ctypes.CDLL('{library}').aclInit(None))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "500000\n"
    assert done.stderr == (
        "normgrad: the C libraries cannot start: RuntimeError: the C libraries were built by "
        "another version of normgrad; build them again with `normgrad capi build`\n"
    )


# The command


def invoke(*words, **environment):
    return CliRunner().invoke(app, ["capi", *map(str, words)], env=environment)


def test_build_and_flags(tmp_path, copied):
    out = tmp_path / "with a space"
    done = invoke("build", "--out", out)
    assert done.exit_code == 0, done.output
    line = f"eval \"c++ host.cpp $(normgrad capi flags --out '{out}' aclnn) -o host\""
    assert line in done.stdout
    assert (out / "lib" / "libopapi.so").exists()
    assert [path.name for path in out.iterdir() if path.name.startswith(".")] == []
    assert invoke("build", "--out", out).exit_code == 0  # over what is there
    done = invoke("flags", "--out", out, "infiniop")
    assert shlex.split(done.stdout) == [
        f"-I{out}/include", f"-L{out}/lib", f"-Wl,-rpath,{out}/lib", "-linfiniop", "-linfinirt",
    ]  # fmt: skip
    assert shlex.split(invoke("flags", "--out", out, "aclnn").stdout)[3:] == [
        "-lopapi", "-lnnopbase", "-lhccl", "-lascendcl",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [
        "a space and a $dollar",
        "a,comma in 日本",
        *[
            pytest.param(name, marks=pytest.mark.full)
            for name in ("plain", "with a space", "a,comma", "a$dollar", "日本")
        ],
    ],
)
def test_the_line_that_build_prints_works(tmp_path, name, copied):
    """As it is printed, in a shell, for a folder of any name; the program runs."""
    out = tmp_path / name
    done = invoke("build", "--out", out)
    assert done.exit_code == 0, done.output
    (line,) = [line.strip() for line in done.stdout.splitlines() if " aclnn)" in line]
    source = tmp_path / "host.cpp"
    source.write_text('#include "acl/acl.h"\nint main() { return aclFinalize() != 100001; }\n')
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-c", f"{line} && ./host"],
        cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_pkg_config(libraries):
    if shutil.which("pkg-config") is None:
        pytest.skip("no pkg-config")
    environment = {**os.environ, "PKG_CONFIG_PATH": str(libraries.out / "lib" / "pkgconfig")}
    for dialect in DIALECTS:
        done = subprocess.run(
            ["pkg-config", "--cflags", "--libs", f"normgrad-{dialect.name}"],
            env=environment, capture_output=True, text=True, check=True,
        )  # fmt: skip
        words = [
            os.path.normpath(word)
            if word.startswith("/")
            else re.sub(r"/lib/pkgconfig/../..", "", word)
            for word in done.stdout.split()
        ]
        assert words == libraries.flags(dialect.name)


def test_each_link_line_alone(libraries, tmp_path):
    """Libraries in any order, and some of them only: each finds what it needs."""
    source = tmp_path / "host.c"
    source.write_text('#include "acl/acl.h"\nint main(void) { return aclFinalize() != 100001; }\n')
    flags = libraries.flags("aclnn")
    for names in (["ascendcl"], ["ascendcl", "nnopbase", "opapi"], ["nnopbase", "ascendcl"]):
        libraries_ = [f"-l{name}" for name in names]
        command = ["gcc", *STRICT, source, *flags[:3], *libraries_, "-o", tmp_path / "host"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        assert subprocess.run([tmp_path / "host"], check=False).returncode == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["flags", "--out", "{tmp}", "aclnn"],
            "no {tmp}/lib/libopapi.so; build it with `normgrad capi",
        ),
        (["flags", "--out", "{tmp}", "cuda"], "DIALECT: 'cuda'; allowed: aclnn, infiniop"),
        (["build", "--out", "{file}"], "--out: {file}"),
        (["build", "--out", "/proc/nowhere"], "--out: /proc/nowhere"),
    ],
)
def test_what_cannot_be_done_is_one_line(tmp_path, words, message):
    (tmp_path / "file").touch()
    names = {"tmp": str(tmp_path), "file": str(tmp_path / "file")}
    done = invoke(*[word.format(**names) for word in words])
    assert done.exit_code == 2
    assert done.stderr.startswith("normgrad: ")
    assert message.format(**names) in done.stderr
    assert done.stderr.count("\n") == 1


def test_no_compiler(tmp_path):
    done = invoke("build", "--out", tmp_path, PATH="", CC="")
    assert (done.exit_code, done.stderr) == (
        2,
        "normgrad: capi build: no C compiler (cc, gcc, clang, or $CC); install one, such as with "
        "`apt install gcc`\n",
    )
    done = invoke("build", "--out", tmp_path, CC="nocc -O3")
    assert done.stderr == ("normgrad: capi build: CC: 'nocc' is not found; allowed: a C compiler\n")
    assert list(tmp_path.iterdir()) == []


def test_a_compiler_that_fails(tmp_path):
    done = invoke("build", "--out", tmp_path, CC="gcc -no-such-option")
    assert done.exit_code == 2
    assert "gcc does not compile the C libraries: gcc: error: " in done.stderr


def test_no_shared_libpython(tmp_path, monkeypatch):
    variables = {
        "py_version_short": "3.11",
        "LIBDIR": str(tmp_path),
        "INSTSONAME": "libpython3.11.a",
    }
    monkeypatch.setattr(build.sysconfig, "get_config_vars", lambda: variables)
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
    done = invoke("build", "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert "has no shared library (libpython3.11.so.1.0); install it, such as with" in done.stderr
    (tmp_path / "libpython3.11.so.1.0").touch()
    assert build._libpython() == tmp_path / "libpython3.11.so.1.0"


def test_no_headers_of_python(tmp_path, monkeypatch):
    monkeypatch.setattr(build.sysconfig, "get_path", lambda name: str(tmp_path))
    done = invoke("build", "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert f"no Python.h in {tmp_path}; install Python's headers, such as with" in done.stderr


def test_another_system(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(compilers.BuildError, match="C libraries for win32; allowed: Linux"):
        build.build(tmp_path)


def test_strings_survive_into_c():
    assert build._c_string('a"b\\c?é\n') == '"a\\042b\\134c\\077\\303\\251\\012"'


def test_prototypes_are_read_as_they_are_written():
    function = next(each for each in functions_of("ascendcl") if each.name == "aclrtMemcpy")
    assert function.returns == "aclError"
    assert function.parameters == (
        ("void *", "dst"),
        ("size_t", "destMax"),
        ("const void *", "src"),
        ("size_t", "count"),
        ("aclrtMemcpyKind", "kind"),
    )
    assert len(declarations.digest()) == 16
