"""Native code that is not of one model, kept like that of models."""

from __future__ import annotations

from collections.abc import Callable

from rlx.backends.cpu.runtime.blob import Blob
from rlx.core.disk_cache import Cache, key_of
from rlx.core.errors import Error

_SECTION = "code"


def cached_blob(key: str, make: Callable[[], Blob], cache: Cache | None, name: str = "") -> Blob:
    """The blob that was made for `key` before, or is made now and kept; `key` names all that
    making it depends on beside the code of rlx."""
    if cache is None:
        return make()
    place = key_of("blob", key)
    found = _found(cache, place)
    if found is None:
        found = make()
        cache.put(place, {"kind": "blob", "name": name}, {_SECTION: found.to_bytes()})
    return found


def _found(cache: Cache, place: str) -> Blob | None:
    file = cache.get(place)
    try:
        return file and Blob.from_bytes(bytes(file.section(_SECTION)))
    except Error:
        cache.drop(place)
        return None
