"""The doctor's checks of GPU modes: compute mode, and whether a GPU is split into parts (MIG)."""

from __future__ import annotations

from collections.abc import Mapping

from launch.doctor_rows import MISSING, OK, WARN, Row
from launch.gpu_devices import PART, VISIBLE, list_visible_devices, query_gpus

MODES = "GPU modes"
SHARING = "GPU sharing"
RESET = "`nvidia-smi -c DEFAULT` as root"


def check_modes() -> Row:
    """Compute mode and MIG of the GPUs that engines may use. A field that the driver does not know is ignored."""
    parts = [device for device in list_visible_devices() or () if device.startswith(PART)]
    split = _list_with(read_field("mig.mode.current"), "Enabled")
    if split and not parts:
        detail = f"MIG splits GPU {split}, and {VISIBLE} names no part: an engine gets one part, of a size not known"
        remedy = f"name parts (`nvidia-smi -L` lists them): `export {VISIBLE}=MIG-...`; or `nvidia-smi -mig 0` as root"
        return Row(MODES, MISSING, detail, remedy)
    modes = read_field("compute_mode")
    if closed := _list_with(modes, "Prohibited"):
        return Row(MODES, MISSING, f"compute mode Prohibited: no engine can use GPU {closed}", RESET)
    if alone := _list_alone(modes):
        detail = f"compute mode Exclusive_Process: GPU {alone} takes one engine at a time, and presets share GPUs"
        return Row(MODES, WARN, detail, f"{RESET}; or use presets with a GPU for each engine")
    shown = ", ".join(sorted(set(modes.values()))) or "not stated"
    return Row(MODES, OK, f"compute mode {shown}" + (f"; {len(parts)} MIG parts are named" if parts else ""))


def check_sharing(engine_gpus: int) -> Row | None:
    """NIXL's proof needs two engines of this many GPUs: missing where they would share a GPU that allows one process.

    None where they need not share one, or may.
    """
    modes = read_field("compute_mode")
    alone = _list_alone(modes)
    if not alone or len(modes) >= 2 * engine_gpus:
        return None
    detail = f"compute mode Exclusive_Process: the two engines of NIXL's proof cannot share GPU {alone}"
    without = '`make gpu GPU_CONFIGS="plain noop_connector mooncake_both lmcache_only"` (`--config`, `doctor --only`)'
    return Row(SHARING, MISSING, detail, f"{RESET}; or measure configs without NIXL: {without}")


def read_field(name: str) -> dict[str, str]:
    """A field of the GPUs that engines may use, by index; without those whose driver does not know it.

    Queried alone: nvidia-smi refuses a whole query for one field that it does not know.
    """
    rows = query_gpus((name,), list_visible_devices()) or ()
    return {index: value for index, value in rows if value and not value.startswith("[")}


def _list_with(values: Mapping[str, str], wanted: str) -> str:
    return ", ".join(index for index, value in values.items() if value == wanted)


def _list_alone(modes: Mapping[str, str]) -> str:
    """Exclusive_Thread is its older name."""
    return ", ".join(index for index, mode in modes.items() if mode.startswith("Exclusive"))
