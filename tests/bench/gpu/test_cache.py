"""benchmarks/gpu_cache.py: kernels that Triton finds in another folder than their first."""

import gpu_cache
import pytest
from triton_programs import arguments, schedule_of

from normgrad.backends.triton import runtime

triton = pytest.importorskip("triton")

if triton.knobs.runtime.interpret:
    pytest.skip("kernels are interpreted", allow_module_level=True)


def test_triton_finds_what_was_unpacked(monkeypatch, tmp_path):
    planned = arguments("batch_norm", (8, 64, 14, 14), "float32")
    (launch,) = schedule_of("batch_norm", **planned).launches
    archive, folder = tmp_path / "cache.tar.xz", tmp_path / "unpacked"
    gpu_cache.pack([launch], archive, 1)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(folder))
    runtime._compiled.cache_clear()
    described = gpu_cache.made_by()
    monkeypatch.setattr(gpu_cache, "made_by", lambda: {**described, "ptxas": "another"})
    with pytest.raises(SystemExit, match=r"^ptxas: 'another'; allowed: 'ptxas"):
        gpu_cache.unpack(archive)
    assert not folder.exists()
    monkeypatch.setattr(gpu_cache, "made_by", lambda: described)
    gpu_cache.unpack(archive)
    found = []
    monkeypatch.setattr(
        triton.knobs.compilation, "listener", lambda **facts: found.append(facts["cache_hit"])
    )
    kernel = runtime.compiled(launch, launch.config, gpu_cache.target())
    assert found == [True]
    assert {*kernel.asm} == {"cubin", "ptx"}


def test_calls_of_the_benchmark_are_planned():
    pytest.importorskip("torch")
    recorder = gpu_cache.Recorder()
    *_, (name, planned) = gpu_cache.calls("^rms-layer-norm/512x1024/float32")
    recorder.note(schedule_of(name, **planned))
    assert name == "rms_norm_backward"
    assert {kernel for kernel, *_ in recorder.launches} == {"groups", "combine_parameters"}
