"""The instances behind the router, added, drained and removed while it runs, each with the index of its cache."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

import msgspec

from results.records.instance_events import InstanceEvent
from results.records.router_spec import InstanceSpec, KvEndpoint, Prewarm, RouterSpec, find_instance_problem
from runners.router.cluster import Cluster, Member
from runners.router.driver import Driver
from runners.router.health import Health
from runners.router.instances.internal_request import InternalRequestFailed, fetch_answer, fetch_metrics
from runners.router.instances.kv_events import BLOCKS_LIMIT, EventIndex, KvEvents, ZmqWire
from runners.router.instances.probes import Probes
from runners.router.instances.upstream import Pool, resolve_instance
from runners.router.messages import RouterError
from runners.router.prefix_index import PrefixIndex, make_block_keys
from runners.router.reporting import Report

ASK_S = 3.0
EVENTS_AT_ONCE = 16
"""KV events' messages of one instance that are applied in a row."""
FOLLOW_S = 0.005
"""Then streams continue; the rest is applied after them."""
UNKNOWN_CAPACITY_BLOCKS = 1 << 17
"""Size of the index of an instance that does not report its capacity: at most about 16 MB of the router's memory."""
BLOCK_TOKENS = 16
"""Block size if neither spec nor engine gives one: the default of vLLM's GPU builds."""
_CACHE_CONFIG = re.compile(rb"^vllm:cache_config_info\{([^}]*)\}", re.MULTILINE)
NUMBER_DIGITS = 9
"""Longest number that is read from a label."""
_LABEL = re.compile(rb'(\w+)="([^"]*)"')


@dataclass(frozen=True, slots=True)
class CacheFacts:
    """An engine's report of its KV cache; None = not reported."""

    block_tokens: int | None = None
    capacity_tokens: int | None = None


class Fleet:
    """Instances by name, each with a connection pool and an index.

    `on_lost` is called once per outage; `on_recovered` at its end, and for an added instance.
    """

    def __init__(self, spec: RouterSpec, cluster: Cluster, driver: Driver, report: Report) -> None:
        self.pools: dict[str, Pool] = {}
        self.indexes: dict[str, PrefixIndex | EventIndex] = {}
        self.block_tokens = spec.block_tokens
        self.specs: dict[str, InstanceSpec] = {}
        self.on_lost: Callable[[str, str], None] = lambda instance, why: None
        self.on_recovered: Callable[[str], None] = lambda instance: None
        self._probes = Probes(self.pools, spec.health)
        self.health = self._probes.health = Health(
            cluster, spec.health, driver, self._lose_instance, self._recover_instance, self._probes.probe_now
        )
        self._spec = spec
        self._cluster = cluster
        self._report = report
        self._events: dict[str, KvEvents] = {}
        self._wires: dict[str, ZmqWire] = {}
        self._follows_on = False
        """`follow_events` will be called again: it did not finish."""
        self._asking: set[asyncio.Task[None]] = set()
        self._adding: set[str] = set()
        """Instances being added: their engines are asked for block size and capacity first."""

    @property
    def follows_events(self) -> bool:
        return bool(self._events)

    async def add_instances(self) -> None:
        """Add the instances of the spec. Raises RouterError."""
        facts = await asyncio.gather(*(self._connect_instance(instance) for instance in self._spec.instances))
        if not self.block_tokens:
            sizes = [instance.block_tokens for instance in self._spec.instances if instance.block_tokens]
            sizes += [fact.block_tokens for fact in facts if fact.block_tokens]
            self.block_tokens = max(sizes, default=BLOCK_TOKENS)
        await asyncio.gather(
            *(self._add_member(instance, fact) for instance, fact in zip(self._spec.instances, facts, strict=True))
        )

    async def add_instance(self, instance: InstanceSpec) -> None:
        """Add an instance; it may be picked once a probe succeeds. Raises RouterError."""
        problem = find_instance_problem(instance)
        if problem is not None:
            raise RouterError(problem[0], remedy=f"Give {problem[1]}.")
        known = None if instance.instance in self._adding else self.specs.get(instance.instance)
        if known is not None:
            if known.url != instance.url:
                raise RouterError(
                    f"there is an instance {instance.instance} already, at {known.url}",
                    remedy="Remove that one first, or give the new one another name.",
                )
            try:
                self._cluster.add_member(_make_member(instance, CacheFacts()))  # ends its drain
            except ValueError as error:
                raise RouterError(str(error), remedy="It may be picked; nothing is to be done.") from error
            return
        if self._spec.index == "events" and not instance.kv_events:
            raise RouterError(f"instance {instance.instance} has no kv_events endpoint", remedy="Give it one.")
        if instance.instance in self._adding:
            raise RouterError(f"instance {instance.instance} is being added already", remedy="Wait until it is.")
        self._adding.add(instance.instance)
        try:
            await self._add_member(instance, await self._connect_instance(instance))
        except BaseException:
            self._forget_instance(instance.instance)
            raise
        finally:
            self._adding.discard(instance.instance)

    def drain_instance(self, instance: str) -> None:
        """Send it no new requests. Raises RouterError for an unknown one, or one being added."""
        self._require_known(instance)
        self._cluster.drain_instance(instance)

    def remove_instance(self, instance: str) -> None:
        """Remove it; no request may be in flight there. Raises RouterError for an unknown one, or one being added."""
        self._require_known(instance)
        self._forget_instance(instance)

    def _forget_instance(self, instance: str) -> None:
        """Remove everything of an instance, even if it was added only in part."""
        self._probes.forget_instance(instance)
        if any(member.instance == instance for member in self._cluster.members):
            self._cluster.remove_instance(instance)
        self.indexes.pop(instance, None)
        self._close_events(instance)
        self.specs.pop(instance, None)
        pool = self.pools.pop(instance, None)
        if pool is not None:
            pool.close()

    async def close(self) -> None:
        for task in self._asking:
            task.cancel()
        await self._probes.close()
        for pool in self.pools.values():
            pool.close()
        for instance in tuple(self._events):
            self._close_events(instance)

    def follow_events(self) -> None:
        """Apply the KV events that have arrived, for FOLLOW_S at a time."""
        until_s = monotonic() + FOLLOW_S
        busy = list(self._events.values())
        while busy and monotonic() < until_s:
            busy = [events for events in busy if events.apply_messages(EVENTS_AT_ONCE)]
        if busy and not self._follows_on:
            self._follows_on = True
            asyncio.get_running_loop().call_soon(self._follow_on)

    def _follow_on(self) -> None:
        self._follows_on = False
        self.follow_events()

    async def prewarm_instances(self, prompt: Prewarm) -> None:
        """Make every instance compute the prompt, and insert it into every index (specs/load_floor.md, Q2.E).

        Raises RouterError naming the instance that did not compute it.
        """
        asked = {"model": prompt.model, "prompt": prompt.token_ids, "max_tokens": 1, "temperature": 0}
        body = msgspec.json.encode(asked)
        await asyncio.gather(*(self._compute_prompt(instance, body) for instance in self.specs))
        keys = make_block_keys(prompt.token_ids, self.block_tokens)
        for name, index in self.indexes.items():
            index.insert_keys(keys)
            if self._spec.index == "approximate":  # with `events` the engines report its blocks
                self._report(InstanceEvent(name, "blocks_stored", keys=keys))

    async def _compute_prompt(self, instance: str, body: bytes) -> None:
        remedy = "See that it is up and takes a prompt of that length, or leave prewarm out."
        limit_s, headers = self._spec.limits.first_byte_s, b"content-type: application/json\r\n"
        try:
            answer, text = await fetch_answer(
                self.pools[instance], b"/v1/completions", timeout_s=limit_s, headers=headers, body=body
            )
        except InternalRequestFailed as error:
            raise RouterError(f"instance {instance} was not pre-warmed: {error}", remedy=remedy) from error
        if answer.status != 200:
            reply = " ".join(text[:200].decode("utf-8", "backslashreplace").split())
            raise RouterError(f"instance {instance} was not pre-warmed: HTTP {answer.status}: {reply}", remedy=remedy)

    def _require_known(self, instance: str) -> None:
        if instance in self._adding:
            raise RouterError(f"instance {instance} is being added", remedy="Wait until it is.")
        if instance not in self.specs:
            names = ", ".join(sorted(self.specs)) or "none"
            raise RouterError(f"there is no instance {instance!r}", remedy=f"There are: {names}.")

    async def _connect_instance(self, instance: InstanceSpec) -> CacheFacts:
        """Create its pool; ask its engine for the block size and capacity that the spec leaves open."""
        pool = Pool(await resolve_instance(instance.url), self._spec.limits.connect_s)
        self.pools[instance.instance] = pool
        self.specs[instance.instance] = instance
        if instance.block_tokens and instance.kv_capacity_tokens:
            return CacheFacts(instance.block_tokens, instance.kv_capacity_tokens)
        return await ask_cache(pool)

    async def _add_member(self, instance: InstanceSpec, facts: CacheFacts) -> None:
        name = instance.instance
        member = _make_member(instance, facts)
        self.indexes[name] = self._make_index(instance, member.kv_capacity_tokens)
        self._cluster.add_member(member)
        self._report(_describe_added(member, instance.transfer))
        self._cluster.set_available(name, False, "not probed yet")
        await self._probes.add_instance(name)
        self.on_recovered(name)

    def _make_index(self, instance: InstanceSpec, capacity_tokens: int | None) -> PrefixIndex | EventIndex:
        if self._spec.index == "approximate":
            if capacity_tokens is None:
                return PrefixIndex(self.block_tokens, UNKNOWN_CAPACITY_BLOCKS)
            return PrefixIndex(self.block_tokens, max(1, capacity_tokens // self.block_tokens))
        limit_blocks = max(BLOCKS_LIMIT, 2 * (capacity_tokens or 0) // self.block_tokens)
        index = EventIndex(self.block_tokens, instance.instance, self._report, limit_blocks)
        wire = ZmqWire(instance.kv_events, instance.kv_replay)
        loop = asyncio.get_running_loop()
        self._events[instance.instance] = KvEvents(index, wire, loop.time)
        self._wires[instance.instance] = wire
        loop.add_reader(wire.fd, self.follow_events)
        return index

    def _close_events(self, instance: str) -> None:
        events, wire = self._events.pop(instance, None), self._wires.pop(instance, None)
        if wire is not None:
            asyncio.get_running_loop().remove_reader(wire.fd)
        if events is not None:
            events.close()

    def _lose_instance(self, instance: str, why: str, gone: bool) -> None:
        """Handle an outage. If no process listens any more (`gone`), its cache is lost: release its sessions."""
        if gone:
            if instance in self.indexes:
                self.indexes[instance].clear()
            self._cluster.bindings.release_instance(instance)
            self._report(InstanceEvent(instance, "lost"))
        self.on_lost(instance, why)

    def _recover_instance(self, instance: str) -> None:
        """Handle a recovery: it may be a new process with another cache size."""
        self.on_recovered(instance)
        spec = self.specs.get(instance)
        if spec is not None and spec.kv_capacity_tokens is None and self._spec.index == "approximate":
            task = asyncio.create_task(self._ask_again(spec, self.pools[instance]))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)

    async def _ask_again(self, instance: InstanceSpec, pool: Pool) -> None:
        """Ask for the capacity again: with another one it is another process, whose cache is empty.

        Ignored if the instance has been removed and added again meanwhile (another `pool`).
        """
        name = instance.instance
        facts = await ask_cache(pool)
        known = {member.instance: member.kv_capacity_tokens for member in self._cluster.members}
        if facts.capacity_tokens not in (None, known.get(name)) and self.pools.get(name) is pool:
            self._cluster.set_capacity(name, facts.capacity_tokens)
            self.indexes[name] = self._make_index(instance, facts.capacity_tokens)


async def ask_cache(pool: Pool) -> CacheFacts:
    """The KV cache facts in an engine's `/metrics`; all None if it cannot be asked."""
    page = await fetch_metrics(pool, ASK_S)
    return CacheFacts() if page is None else read_cache_facts(page)


def read_cache_facts(page: bytes) -> CacheFacts:
    """The facts in a page of vLLM's metrics (`vllm:cache_config_info`), of its first engine."""
    line = _CACHE_CONFIG.search(page)
    labels = dict(_LABEL.findall(line[1])) if line else {}
    block, blocks = _read_number(labels.get(b"block_size")), _read_number(labels.get(b"num_gpu_blocks"))
    capacity = _read_number(labels.get(b"kv_cache_size_tokens"))
    if capacity is None and block and blocks:
        capacity = block * blocks
    return CacheFacts(block or None, capacity or None)


def _read_number(text: bytes | None) -> int | None:
    return int(text) if text is not None and text.isdigit() and len(text) <= NUMBER_DIGITS else None


def _make_member(instance: InstanceSpec, facts: CacheFacts) -> Member:
    capacity = instance.kv_capacity_tokens or facts.capacity_tokens
    block = instance.block_tokens or facts.block_tokens or 1
    return Member(instance.instance, instance.url, instance.role, capacity, block)


def _describe_added(member: Member, transfer: KvEndpoint | None) -> InstanceEvent:
    return InstanceEvent(
        member.instance,
        "added",
        role=member.role,
        kv_capacity_tokens=member.kv_capacity_tokens,
        block_tokens=member.block_tokens,
        transport="" if transfer is None else transfer.transport,
        kv_role="" if transfer is None else transfer.kv_role,
        bootstrap="" if transfer is None else transfer.bootstrap,
    )
