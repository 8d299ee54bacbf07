"""An NVML of Python in pynvml's place of the loaded library, for what a clean driver (`tests/nvml`) does not do."""
# The names are NVML's, and so is what they mean.
# ruff: noqa: N802, N815

import itertools
import threading
from ctypes import addressof, c_void_p, cast, memmove

from sluice.mig.catalog import find_model

OK, INVALID, UNSUPPORTED, FORBIDDEN, ABSENT, SHORT, TIMEOUT, LOST, IN_USE, FULL = 0, 2, 3, 4, 6, 7, 10, 15, 19, 23
_addresses = itertools.count(0x1000, 0x10)


def _on(*kinds, errors=""):
    """A function of NVML on a handle of these `kinds`: the error of its GPU, or one that was set for it, goes first."""

    def on(function):
        def called(library, handle, *rest):
            found, error = library._of(handle, kinds)
            return error or getattr(found, "errors", {}).get(errors, 0) or function(library, found, *rest) or OK

        return called

    return on


def _fact(name, value):
    """A function that returns a number of a GPU or MIG device, or the error that was set for this `name`."""

    @_on("gpu", "mig", errors=name)
    def tell(_library, found, *arguments):
        arguments[-1]._obj.value = value(found)

    return tell


def _processes(which):
    """A function that lists the processes of a device that it has as `which`."""

    @_on("gpu", "mig", errors=which)
    def listed(_library, found, count, array):
        pids, room = getattr(found, which), count._obj.value
        count._obj.value = len(pids)
        if len(pids) > room:
            return SHORT
        for number, pid in enumerate(pids):
            array[number].pid = pid
        return OK

    return listed


class Device:
    """A GPU, GPU instance, compute instance or MIG device: anything that has a handle."""

    def __init__(self, library, **facts):
        self.library = library
        self.renew()
        self.__dict__.update(facts)

    def renew(self):
        """Have another handle from now on, as after a reset. The old one points at nothing."""
        self.address = next(_addresses)
        self.library.handles[self.address] = self

    def haunt(self):
        """Replace the handle, and leave one behind that still shows its UUID, as NVML may from its cache."""
        left = self.address
        self.renew()
        self.library.handles[left] = Device(self.library, kind="ghost", uuid=self.uuid, error=0)

    def gone(self):
        """Not there any more: its handle points at nothing."""
        del self.library.handles[self.address]


class Library:
    """What `CDLL("libnvidia-ml.so.1")` is to pynvml. A function that is missing here is missing in this driver."""

    def __init__(self):
        self.handles = {}
        self.gpus = []
        self.down = 0
        self.cuda = 13010
        self.events = []
        self.registered = {}
        self.set_freed = False
        self.inits = 0
        self.missing = set()
        self.waiting = threading.Event()

    def __getattribute__(self, name):
        """Functions of NVML, unless this driver has not got them."""
        get = object.__getattribute__
        if name.startswith("nvml") and name in get(self, "missing"):
            raise AttributeError(name)
        return get(self, name)

    def gpu(self, model="a100-40gb", **facts):
        known = find_model(model)
        number = len(self.gpus)
        defaults = {
            "kind": "gpu", "model": known, "number": number, "uuid": f"GPU-{number:08d}-0000-0000-0000-000000000000",
            "mig": [1, 1], "instances": [], "pids": [], "clients": [], "drawing": [], "error": 0, "errors": {},
            "compute_mode": 0, "links": [], "affinity": 0, "recovery": None, "ecc": 0, "minor": number,
            "seen": 0,
        }  # fmt: skip
        self.gpus.append(Device(self, **defaults | facts))
        return self.gpus[-1]

    def instance(self, gpu, name, start, gi_id, *, device=True):
        profile = gpu.model.profile(name)
        span = next(span for span in profile.placements if span.start == start)
        gi = Device(self, kind="gi", gpu=gpu, id=gi_id, profile=profile, start=start, size=span.size, cis=[], error=0)
        gpu.instances.append(gi)
        if device:
            self.compute(gi)
        return gi

    def compute(self, gi):
        """A compute instance made in it by another program, and its MIG device."""
        index = next(i for i in itertools.count() if i not in {ci.index for g in gi.gpu.instances for ci in g.cis})
        ci = Device(self, kind="ci", gi=gi, id=len(gi.cis), index=index, uuid=f"MIG-{next(_addresses)}", error=0)
        ci.mig = Device(self, kind="mig", ci=ci, uuid=ci.uuid, error=0, pids=[], clients=[], drawing=[], errors={})
        gi.cis.append(ci)
        return ci

    # -- how values cross -----------------------------------------------------------------------------------------

    def _of(self, handle, kinds):
        """What a handle points at, or an error code."""
        found = self.handles.get(cast(handle, c_void_p).value)
        if found is None or found.kind not in kinds:
            return None, INVALID
        owner = {"gi": lambda f: f.gpu, "ci": lambda f: f.gi.gpu, "mig": lambda f: f.ci.gi.gpu}.get(found.kind)
        return found, (owner(found) if owner else found).error

    @staticmethod
    def _point(reference, thing):
        memmove(addressof(reference._obj), bytes(c_void_p(thing.address)), 8)

    # -- system ---------------------------------------------------------------------------------------------------

    def nvmlInitWithFlags(self, _flags):
        self.inits += self.down == 0
        return self.down

    def nvmlShutdown(self):
        self.inits -= 1
        return OK

    def nvmlSystemGetDriverVersion(self, buffer, _size):
        buffer.value = b"580.65.06"
        return OK

    def nvmlSystemGetCudaDriverVersion_v2(self, out):
        out._obj.value = self.cuda
        return OK

    def nvmlDeviceGetCount_v2(self, out):
        out._obj.value = len(self.gpus)
        return OK

    # -- devices --------------------------------------------------------------------------------------------------

    def nvmlDeviceGetHandleByIndex_v2(self, index, out):
        if index.value >= len(self.gpus):
            return INVALID
        gpu = self.gpus[index.value]
        self._point(out, gpu)
        return gpu.errors.get("handle", gpu.error)

    def nvmlDeviceGetHandleByUUID(self, uuid, out):
        for found in list(self.handles.values()):
            if getattr(found, "uuid", "") == uuid.value.decode() and found.kind in {"gpu", "mig"}:
                self._point(out, found)
                return found.error
        return ABSENT

    @_on("gpu", "mig", "ghost")
    def nvmlDeviceGetUUID(self, found, buffer, _size):
        buffer.value = found.uuid.encode()

    @_on("gpu", errors="name")
    def nvmlDeviceGetName(self, gpu, buffer, _size):
        buffer.value = gpu.model.product_names[0].encode()

    nvmlDeviceGetIndex = _fact("index", lambda gpu: gpu.library.gpus.index(gpu))
    nvmlDeviceGetMinorNumber = _fact("minor", lambda gpu: gpu.minor)

    @_on("gpu")
    def nvmlDeviceGetPciInfo_v3(self, gpu, out):
        out._obj.domain, out._obj.bus, out._obj.device = 0xFFFF, gpu.number, 0

    @_on("gpu")
    def nvmlDeviceGetMemoryInfo(self, gpu, out):
        out._obj.total = gpu.model.memory_mib * 1024**2

    @_on("gpu")
    def nvmlDeviceGetMemoryAffinity(self, gpu, size, out, _scope):
        out._obj[0] = gpu.affinity
        assert size >= 1

    def nvmlDeviceGetNvLinkState(self, handle, link, out):
        gpu, _ = self._of(handle, {"gpu"})
        if link >= len(gpu.links):
            return INVALID if gpu.links else UNSUPPORTED
        out._obj.value = gpu.links[link] is not None
        return OK

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle, link, out):
        gpu, _ = self._of(handle, {"gpu"})
        out._obj.value = 2 if gpu.links[link] == "switch" else 0
        return OK

    def nvmlDeviceGetNvLinkRemotePciInfo_v2(self, handle, link, out):
        gpu, _ = self._of(handle, {"gpu"})
        out._obj.domain, out._obj.bus, out._obj.device = 0xFFFF, gpu.links[link], 0
        return OK

    nvmlDeviceGetTotalEccErrors = _fact("ecc", lambda gpu: gpu.ecc)

    @_on("gpu")
    def nvmlDeviceGetFieldValues(self, gpu, _count, values):
        assert values._obj[0].fieldId == 230
        if gpu.recovery is None:
            values._obj[0].nvmlReturn = UNSUPPORTED
        else:
            values._obj[0].value.uiVal = gpu.recovery

    nvmlDeviceGetComputeMode = _fact("mode", lambda gpu: gpu.compute_mode)

    @_on("gpu")
    def nvmlDeviceSetComputeMode(self, gpu, mode):
        if "deaf" not in gpu.errors:
            gpu.compute_mode = mode.value

    nvmlDeviceGetComputeRunningProcesses_v3 = nvmlDeviceGetComputeRunningProcesses_v2 = _processes("pids")
    nvmlDeviceGetMPSComputeRunningProcesses_v3 = nvmlDeviceGetMPSComputeRunningProcesses_v2 = _processes("clients")
    nvmlDeviceGetGraphicsRunningProcesses_v3 = nvmlDeviceGetGraphicsRunningProcesses_v2 = _processes("drawing")

    # -- MIG ------------------------------------------------------------------------------------------------------

    def nvmlDeviceGetMigMode(self, handle, now, after):
        gpu, error = self._of(handle, {"gpu"})
        if gpu is not None and gpu.mig is None:
            return UNSUPPORTED
        if not error and not gpu.errors.get("mig"):
            now._obj.value, after._obj.value = gpu.mig
        return error or gpu.errors.get("mig", 0)

    @_on("gpu")
    def nvmlDeviceGetGpuInstanceProfileInfoV(self, gpu, enum, out):
        profile = next((profile for profile in gpu.model.profiles if profile.nvml_enum == enum), None)
        if gpu.mig is None or profile is None or gpu.errors.get("profiles"):
            return UNSUPPORTED if enum < 16 else INVALID
        info = out._obj
        info.id, info.sliceCount, info.instanceCount = profile.profile_id, profile.compute_slices, profile.max_instances
        info.multiprocessorCount, info.memorySizeMB = profile.multiprocessors, profile.memory_mib
        engines = profile.engines
        info.copyEngineCount, info.decoderCount, info.encoderCount = engines.copy, engines.decode, engines.encode
        info.jpegCount, info.ofaCount = engines.jpeg, engines.ofa
        gpu.seen += 1
        if hasattr(info, "name"):
            info.name = f"MIG {profile.name}".encode()
        return OK

    nvmlDeviceGetGpuInstanceProfileInfo = nvmlDeviceGetGpuInstanceProfileInfoV

    def nvmlDeviceGetGpuInstancePossiblePlacements_v2(self, handle, profile_id, array, count):
        gpu, _ = self._of(handle, {"gpu"})
        spans = next(profile for profile in gpu.model.profiles if profile.profile_id == profile_id).placements
        if array is not None:
            for number, span in enumerate(reversed(spans)):
                array[number].start, array[number].size = span.start, span.size
        count._obj.value = len(spans)
        return OK

    @_on("gpu", errors="create")
    def nvmlDeviceCreateGpuInstanceWithPlacement(self, gpu, profile_id, placement, out):
        span = placement._obj  # only a reference has it: a placement by value would crash the interpreter
        if any(span.start < one.start + one.size and one.start < span.start + span.size for one in gpu.instances):
            return FULL
        profile = next(profile for profile in gpu.model.profiles if profile.profile_id == profile_id)
        self._point(out, self.instance(gpu, profile.name, span.start, 14 - len(gpu.instances), device=False))
        return OK

    @_on("gpu", errors="list")
    def nvmlDeviceGetGpuInstances(self, gpu, profile_id, array, count):
        return self._list([one for one in gpu.instances if one.profile.profile_id == profile_id], array, count)

    def _list(self, found, array, count):
        if len(found) > count._obj.value:
            return SHORT
        for number, one in enumerate(found):
            array[number] = cast(c_void_p(one.address), type(array)._type_)
        count._obj.value = len(found)
        return OK

    @_on("gpu")
    def nvmlDeviceGetGpuInstanceById(self, gpu, gi_id, out):
        if gpu.mig != [1, 1]:
            return UNSUPPORTED
        for one in gpu.instances:
            if one.id == gi_id:
                self._point(out, one)
                return OK
        return ABSENT

    @_on("gi")
    def nvmlGpuInstanceGetInfo(self, gi, out):
        if gi.gpu.errors.get("info"):
            return gi.gpu.errors["info"]
        out._obj.id, out._obj.profileId = gi.id, gi.profile.profile_id
        out._obj.placement.start, out._obj.placement.size = gi.start, gi.size
        return OK

    @_on("gi")
    def nvmlGpuInstanceDestroy(self, gi):
        if gi.cis:
            return IN_USE
        gi.gpu.instances.remove(gi)
        gi.gone()
        return OK

    @_on("gi")
    def nvmlGpuInstanceGetComputeInstanceProfileInfoV(self, gi, enum, engine, out):
        assert engine == 0
        slices = {0: 1, 1: 2, 2: 3, 3: 4, 4: 7, 7: 1}.get(enum, 0)
        double = gi.profile.compute_slices == 1 and gi.size == 2
        if not 0 < slices <= gi.profile.compute_slices or (enum == 7 and not double):
            return UNSUPPORTED
        out._obj.id, out._obj.sliceCount, out._obj.instanceCount = enum, slices, gi.profile.compute_slices // slices
        each = gi.profile.multiprocessors // gi.profile.compute_slices
        out._obj.multiprocessorCount = gi.profile.multiprocessors - 2 if double and enum == 0 else each * slices
        return OK

    @_on("gi")
    def nvmlGpuInstanceCreateComputeInstance(self, gi, profile_id, out):
        if gi.gpu.errors.get("ci") or gi.cis:
            return gi.gpu.errors.get("ci") or FULL
        ci = self.compute(gi)
        ci.profile_id = profile_id
        self._point(out, ci)
        return OK

    @_on("gi")
    def nvmlGpuInstanceGetComputeInstances(self, gi, profile_id, array, count):
        return self._list([ci for ci in gi.cis if getattr(ci, "profile_id", 0) == profile_id], array, count)

    @_on("ci")
    def nvmlComputeInstanceGetInfo_v2(self, ci, out):
        out._obj.id, out._obj.profileId = ci.id, getattr(ci, "profile_id", 0)
        out._obj.device = cast(c_void_p(ci.gi.gpu.address), type(out._obj.device))

    @_on("ci")
    def nvmlComputeInstanceDestroy(self, ci):
        if ci.mig.pids:
            return IN_USE
        ci.gi.cis.remove(ci)
        ci.mig.gone()
        ci.gone()
        return OK

    nvmlDeviceGetMaxMigDeviceCount = _fact("max", lambda _gpu: 7)

    @_on("gpu")
    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu, index, out):
        for ci in [ci for one in gpu.instances for ci in one.cis]:
            if ci.index == index.value and "hidden" not in gpu.errors:
                self._point(out, ci.mig)
                return OK
        return ABSENT

    nvmlDeviceGetGpuInstanceId = _fact("id", lambda mig: mig.ci.gi.id)
    nvmlDeviceGetComputeInstanceId = _fact("id", lambda mig: mig.ci.id)

    @_on("mig")
    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, mig, out):
        self._point(out, mig.ci.gi.gpu)

    # -- events ---------------------------------------------------------------------------------------------------

    def nvmlEventSetCreate(self, _out):
        return OK

    def nvmlEventSetFree(self, _set):
        self.set_freed = True
        return OK

    nvmlDeviceGetSupportedEventTypes = _fact("events", lambda _gpu: 0x8 | 0x2 | 0x1)

    @_on("gpu")
    def nvmlDeviceRegisterEvents(self, gpu, types, _set):
        self.registered.setdefault(gpu.uuid, []).append(types.value)

    def nvmlEventSetWait_v2(self, _set, out, timeout_ms):
        self.waiting.set()
        if not self.events:
            threading.Event().wait(timeout_ms.value / 1000)
            return TIMEOUT
        event = self.events.pop(0)
        if isinstance(event, int):
            return event
        device, kind, data = event
        out._obj.device = cast(c_void_p(device.address), type(out._obj.device))
        out._obj.eventType, out._obj.eventData = kind, data
        return OK
