"""LMCache's device side for a CPU build of vLLM: LMCache 0.5.6 ships none and then only waits (3 s per request).

vLLM's CPU attention packs keys and values inside a block in its own order, which differs between processors, so single
tokens cannot be extracted from a block. Whole blocks can be moved without knowing that order. LMCache stores whole
blocks only if its chunk is a multiple of the block and it stores full chunks only; any other setting is refused.
Stored data is in this host's order and useless to an engine on another host.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Protocol, Self

from .engine_log import write_line
from .hooks import load, replace_once, surround

CONNECTOR = "vllm.distributed.kv_transfer.kv_connector.v1.lmcache_connector"
DEVICE_SIDE = "lmcache.v1.gpu_connector"
_MARK = "_tracon_block_copier"
_FACTORY_PARAMETERS = ("config", "metadata", "engine")
"""First parameters of LMCache's CreateGPUConnector."""


class Tensor(Protocol):
    """What is used of torch's."""

    @property
    def shape(self) -> Sequence[int]: ...
    def view(self, shape: Sequence[int]) -> Tensor: ...
    def index_copy_(self, dim: int, index: Tensor, source: Tensor) -> object: ...
    def any(self) -> object: ...
    def __getitem__(self, index: slice) -> Tensor: ...
    def __len__(self) -> int: ...
    def __mod__(self, divisor: int) -> Tensor: ...
    def __floordiv__(self, divisor: int) -> Tensor: ...


class Chunk(Protocol):
    """LMCache's MemoryObj."""

    @property
    def tensor(self) -> Tensor: ...


class Metadata(Protocol):
    """LMCacheMetadata; the shape is (layers, 2 or 1 for MLA, chunk, KV heads, head size)."""

    @property
    def kv_shape(self) -> tuple[int, int, int, int, int]: ...
    @property
    def use_mla(self) -> bool: ...


class Unsupported(RuntimeError):
    """This LMCache, or this setting of it, cannot be served by whole blocks; LMCache logs it and runs degraded."""


def supply_when_made() -> None:
    """Give LMCache its device side when vLLM makes the first LMCacheConnectorV1; until then LMCache is not imported."""

    def supply_or_log(*_: object) -> None:
        try:
            supply()
        except Exception as error:  # noqa: BLE001 - LMCache then logs itself that it runs degraded
            write_line(f"no CPU side for LMCache: {type(error).__name__}: {error}")

    replace_once(load(CONNECTOR).LMCacheConnectorV1, "__init__", surround(before=supply_or_log), _MARK)


def supply() -> None:
    """Put a BlockCopier where LMCache makes the device side of a vLLM worker on a CPU. Raises Unsupported."""
    module: Any = load(DEVICE_SIDE)
    names = tuple(inspect.signature(module.CreateGPUConnector).parameters)
    if names[: len(_FACTORY_PARAMETERS)] != _FACTORY_PARAMETERS:
        raise Unsupported(f"CreateGPUConnector has the parameters ({', '.join(names)})")
    interface = module.GPUConnectorInterface
    unknown = sorted(name for name in interface.__abstractmethods__ if not hasattr(BlockCopier, name))
    if unknown:
        raise Unsupported(f"LMCache asks its device side for {', '.join(unknown)}")
    interface.register(BlockCopier)

    def wrap(original: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(original)
        def create(config: object, metadata: Metadata, engine: object, *args: Any, **kwargs: Any) -> object:
            if engine is module.EngineType.VLLM and load("lmcache").torch_device_type == "cpu":
                return BlockCopier.of(config, metadata)
            return original(config, metadata, engine, *args, **kwargs)

        return create

    replace_once(module, "CreateGPUConnector", wrap, _MARK)


class BlockCopier:
    """Copies whole KV blocks between vLLM's cache, a tensor [blocks, heads, block, 2 x head size] per layer, and
    LMCache's chunks, [2, layers, tokens, heads x head size] each, whose bytes it uses as [layer][block]."""

    def __init__(self, layers: int, heads: int, head_size: int) -> None:
        self.layers = layers
        self.heads = heads
        self.head_size = head_size
        self.kvcaches: Sequence[Tensor] | None = None

    @classmethod
    def of(cls, config: object, metadata: Metadata) -> Self:
        """For LMCache's config and metadata. Raises Unsupported."""
        settings = ("use_layerwise", "enable_blending", "save_unfull_chunk")
        refused = [name for name in settings if getattr(config, name)]
        if refused:
            raise Unsupported(f"whole blocks cannot serve LMCache with {', '.join(refused)}")
        layers, parts, _chunk, heads, head_size = metadata.kv_shape
        if metadata.use_mla or parts != 2:
            raise Unsupported("only keys and values side by side are known here, not MLA")
        return cls(layers, heads, head_size)

    def get_shape(self, num_tokens: int) -> Sequence[int]:
        """Shape of a chunk of this many tokens."""
        import torch

        shape: Sequence[int] = torch.Size([2, self.layers, num_tokens, self.heads * self.head_size])
        return shape

    def initialize_kvcaches_ptr(self, **kwargs: Any) -> None:
        """Take vLLM's caches; the first time, check their form. Raises Unsupported."""
        caches = kwargs.get("kvcaches")
        if caches is None or caches is self.kvcaches:
            return
        if self.kvcaches is None:
            self._require_form(caches)
        self.kvcaches = caches

    def from_gpu(self, memory_obj: Chunk, start: int, end: int, **kwargs: Any) -> None:
        """Store tokens [start, end) of the sequence whose slots are given."""
        import torch

        caches, chunk, blocks = self._find_blocks(memory_obj, start, end, kwargs)
        for cache, stored in zip(caches, chunk, strict=True):
            torch.index_select(cache, 0, blocks, out=stored)

    def to_gpu(self, memory_obj: Chunk, start: int, end: int, **kwargs: Any) -> None:
        """Load tokens [start, end), except the blocks that vLLM already has in its own cache."""
        caches, chunk, blocks = self._find_blocks(memory_obj, start, end, kwargs)
        cached_end = min(end, max(start, kwargs.get("vllm_cached_tokens", 0)))
        skip = (cached_end - start) // caches[0].shape[2]
        for cache, stored in zip(caches, chunk, strict=True):
            cache.index_copy_(0, blocks[skip:], stored[skip:])

    def batched_from_gpu(
        self, memory_objs: Sequence[Chunk], starts: Sequence[int], ends: Sequence[int], **kwargs: Any
    ) -> None:
        for memory_obj, start, end in zip(memory_objs, starts, ends, strict=True):
            self.from_gpu(memory_obj, start, end, **kwargs)

    def batched_to_gpu(
        self, memory_objs: Sequence[Chunk], starts: Sequence[int], ends: Sequence[int], **kwargs: Any
    ) -> None:
        for memory_obj, start, end in zip(memory_objs, starts, ends, strict=True):
            self.to_gpu(memory_obj, start, end, **kwargs)

    def _require_form(self, caches: Sequence[Tensor]) -> None:
        forms = {tuple(cache.shape) for cache in caches}
        fits = [form for form in forms if len(form) == 4 and (form[1], form[3]) == (self.heads, 2 * self.head_size)]
        if len(caches) != self.layers or len(forms) != 1 or not fits:
            wanted = f"{self.layers} times [blocks, {self.heads}, block, {2 * self.head_size}]"
            raise Unsupported(f"vLLM's caches are {len(caches)} of {sorted(forms)}, not {wanted}")

    def _find_blocks(
        self, memory_obj: Chunk, start: int, end: int, kwargs: dict[str, Any]
    ) -> tuple[Sequence[Tensor], Sequence[Tensor], Tensor]:
        """vLLM's caches, the chunk's blocks per layer, and the blocks' numbers in vLLM's caches."""
        self.initialize_kvcaches_ptr(**kwargs)
        if self.kvcaches is None:
            raise Unsupported("LMCache gave no KV caches")
        _, *block = self.kvcaches[0].shape
        size = block[1]
        slots: Tensor = kwargs["slot_mapping"][start:end:size]
        if (end - start) % size or (slots % size).any():
            remedy = "LMCACHE_CHUNK_SIZE must be a multiple of the block size"
            raise Unsupported(f"tokens {start} to {end} are no whole blocks of {size}: {remedy}")
        per_layer: Any = memory_obj.tensor.view((self.layers, len(slots), *block))
        return self.kvcaches, per_layer, slots // size
