"""LMCache gets a CPU side where it has none: only then, only for what whole blocks can serve, and said aloud if not."""

from __future__ import annotations

import abc
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, ModuleType, SimpleNamespace

import pytest

from launch.environment import find_engine
from patches import cpu_connectors, lmcache_cpu
from patches.lmcache_cpu import BlockCopier, Unsupported

from .conftest import PutModules

ROOT = Path(__file__).parents[2]
VLLM, SGLANG = object(), object()
SETTINGS = {"use_layerwise": False, "enable_blending": False, "save_unfull_chunk": False}


class DeviceSide(abc.ABC):
    @abc.abstractmethod
    def to_gpu(self) -> None: ...


def make(config: object, metadata: object, engine: object, layout_hints: object = None) -> object:
    """As LMCache does it: on a CPU there is nothing to make."""
    raise RuntimeError("No supported cpu connector found.")


def install(
    put_modules: PutModules, device: str = "cpu", gpu_connector: Mapping[str, object] = MappingProxyType({})
) -> tuple[ModuleType, type]:
    """A stand-in of LMCache and of vLLM's connector for it; both are returned."""

    class LMCacheConnectorV1:
        def __init__(self, role: str) -> None:
            self.role = role

    lmcache, side, connector = ModuleType("lmcache"), ModuleType("gpu_connector"), ModuleType("lmcache_connector")
    vars(lmcache).update(torch_device_type=device)
    given = {
        "CreateGPUConnector": make, "GPUConnectorInterface": DeviceSide,
        "EngineType": SimpleNamespace(VLLM=VLLM, SGLANG=SGLANG),
    }  # fmt: skip
    vars(side).update({**given, **gpu_connector})
    vars(connector).update(LMCacheConnectorV1=LMCacheConnectorV1)
    put_modules({"lmcache": lmcache, lmcache_cpu.DEVICE_SIDE: side, lmcache_cpu.CONNECTOR: connector})
    return side, LMCacheConnectorV1


def metadata(**changed: object) -> SimpleNamespace:
    return SimpleNamespace(**({"kv_shape": (2, 2, 256, 2, 32), "use_mla": False} | changed))


def test_lmcache_is_not_touched_before_vllm_makes_its_connector(put_modules: PutModules) -> None:
    side, connector = install(put_modules)
    lmcache_cpu.supply_when_made()
    assert side.CreateGPUConnector is make
    assert connector("worker").role == "worker"
    made = side.CreateGPUConnector(SimpleNamespace(**SETTINGS), metadata(), VLLM, layout_hints={})
    assert isinstance(made, BlockCopier)
    assert isinstance(made, DeviceSide)


def test_supplying_twice_wraps_once(put_modules: PutModules) -> None:
    side, connector = install(put_modules)
    lmcache_cpu.supply_when_made()
    once = vars(connector)["__init__"]
    lmcache_cpu.supply_when_made()
    assert vars(connector)["__init__"] is once
    connector("scheduler")
    supplied = side.CreateGPUConnector
    connector("worker")
    assert side.CreateGPUConnector is supplied


@pytest.mark.parametrize(("device", "engine"), [("cuda", VLLM), ("cpu", SGLANG)])
def test_other_devices_and_other_engines_are_left_to_lmcache(
    put_modules: PutModules, device: str, engine: object
) -> None:
    side, _ = install(put_modules, device)
    lmcache_cpu.supply()
    with pytest.raises(RuntimeError, match="No supported cpu connector"):
        side.CreateGPUConnector(SimpleNamespace(**SETTINGS), metadata(), engine)


class WantsMore(DeviceSide):
    @abc.abstractmethod
    def prefetch(self) -> None: ...


def other_signature(metadata: object, config: object) -> object:
    """Of an LMCache that is not known."""


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"GPUConnectorInterface": WantsMore}, "asks its device side for prefetch"),
        ({"CreateGPUConnector": other_signature}, "has the parameters (metadata, config)"),
    ],
)
def test_an_lmcache_that_is_not_known_is_left_alone_and_said(
    put_modules: PutModules, capfd: pytest.CaptureFixture[str], changed: Mapping[str, object], said: str
) -> None:
    side, connector = install(put_modules, gpu_connector=changed)
    before = side.CreateGPUConnector
    lmcache_cpu.supply_when_made()
    assert connector("worker").role == "worker"
    assert side.CreateGPUConnector is before
    assert said in capfd.readouterr().err


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_that_need_parts_of_blocks_are_refused(name: str) -> None:
    with pytest.raises(Unsupported, match=name):
        BlockCopier.of(SimpleNamespace(**(SETTINGS | {name: True})), metadata())


@pytest.mark.parametrize("changed", [{"use_mla": True}, {"kv_shape": (2, 1, 256, 2, 32)}])
def test_caches_without_keys_and_values_side_by_side_are_refused(changed: Mapping[str, object]) -> None:
    with pytest.raises(Unsupported, match="MLA"):
        BlockCopier.of(SimpleNamespace(**SETTINGS), metadata(**changed))


@pytest.mark.parametrize(
    "forms",
    [
        [(9, 2, 128, 64)],
        [(9, 2, 128, 64), (8, 2, 128, 64)],
        [(9, 128, 2, 64), (9, 128, 2, 64)],
        [(2, 9, 128, 2, 32), (2, 9, 128, 2, 32)],
    ],
    ids=["a layer is missing", "layers differ", "another order", "keys and values apart"],
)
def test_caches_of_another_form_are_refused(forms: list[tuple[int, ...]]) -> None:
    caches = [SimpleNamespace(shape=form) for form in forms]
    with pytest.raises(Unsupported, match="not 2 times"):
        BlockCopier.of(SimpleNamespace(**SETTINGS), metadata()).initialize_kvcaches_ptr(kvcaches=caches)


def test_a_cuda_build_needs_no_shim(put_modules: PutModules) -> None:
    torch = ModuleType("torch")
    cuda = SimpleNamespace(is_built=lambda: True)
    vars(torch).update(backends=SimpleNamespace(cuda=cuda), accelerator=SimpleNamespace(is_available=lambda: True))
    side, connector = install(put_modules)
    put_modules({"torch": torch})
    assert cpu_connectors.apply() == {}
    connector("worker")
    assert side.CreateGPUConnector is make


COPIES = """
import torch
from types import SimpleNamespace
from patches.lmcache_cpu import BlockCopier, Unsupported
torch.manual_seed(1)
BLOCK, CHUNK, LAYERS, HEADS, SIZE = 32, 64, 3, 2, 8
for chunks in (1, 2, 5):
    for cached in (0, BLOCK, CHUNK, CHUNK + BLOCK):
        tokens, blocks = chunks * CHUNK, 24
        def caches():
            return [torch.randn(blocks, HEADS, BLOCK, 2 * SIZE).to(torch.bfloat16) for _ in range(LAYERS)]
        def slots():
            chosen = torch.randperm(blocks)[: tokens // BLOCK]
            return chosen, (chosen[:, None] * BLOCK + torch.arange(BLOCK)).flatten()
        copier = BlockCopier(LAYERS, HEADS, SIZE)
        shape = copier.get_shape(CHUNK)
        stored = [SimpleNamespace(tensor=torch.zeros(shape, dtype=torch.bfloat16)) for _ in range(chunks)]
        starts = list(range(0, tokens, CHUNK))
        ends = [start + CHUNK for start in starts]
        source, (places, mapping) = caches(), slots()
        copier.batched_from_gpu(stored, starts, ends, kvcaches=source, slot_mapping=mapping)
        target, (others, mapping) = caches(), slots()
        before = [cache.clone() for cache in target]
        copier.batched_to_gpu(stored, starts, ends, kvcaches=target, slot_mapping=mapping, vllm_cached_tokens=cached)
        kept = min(cached, tokens) // BLOCK
        for layer in range(LAYERS):
            assert torch.equal(target[layer][others[kept:]], source[layer][places[kept:]]), "loaded as stored"
            untouched = sorted(set(range(blocks)) - set(others[kept:].tolist()))
            assert torch.equal(target[layer][untouched], before[layer][untouched]), "nothing else is written"
for start, end, shift in ((0, CHUNK - 1, 0), (0, CHUNK, 1)):
    try:
        copier.from_gpu(stored[0], start, end, kvcaches=source, slot_mapping=mapping + shift)
    except Unsupported:
        continue
    raise AssertionError("parts of blocks were copied")
print("copied")
"""


@pytest.mark.engine
def test_blocks_come_back_as_they_were_and_no_other_is_written() -> None:
    python = find_engine("cpu").python
    done = subprocess.run([python, "-c", COPIES], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout.strip() == "copied", done.stderr
