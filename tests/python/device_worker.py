"""A trainer with tensors in device memory, in a separate process, since the driver is chosen at start.
Exits with 77 if there is no device."""

import ctypes
import sys
import threading

import holdfast
import numpy

#: Large enough that a copy overlaps with concurrent changes.
BYTES = 32 << 20
#: The stream and the default stream do not wait for each other.
NON_BLOCKING = 1


class Driver:
    """The driver's functions by their exported names. An error ends the process."""

    def __init__(self):
        try:
            self.library = ctypes.CDLL("libcuda.so.1")
        except OSError:
            sys.exit(77)
        devices = ctypes.c_int()
        if self.library.cuInit(0) != 0 or self.library.cuDeviceGetCount(ctypes.byref(devices)) != 0 \
                or devices.value == 0:
            sys.exit(77)
        self.devices = devices.value

    def __getattr__(self, name):
        function = getattr(self.library, name)

        def call(*arguments):
            code = function(*arguments)
            assert code == 0, f"{name}: {code}"
        return call


class DeviceMemory:
    """BYTES on one device, and a stream."""

    def __init__(self, driver, index):
        self.driver, self.index = driver, index
        context, memory, stream = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_void_p()
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), index)
        driver.cuCtxPushCurrent_v2(context)
        driver.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(BYTES))
        driver.cuStreamCreate(ctypes.byref(stream), NON_BLOCKING)
        self.context, self.memory, self.stream = context, memory, stream
        driver.cuMemsetD8Async(memory, 0, ctypes.c_size_t(BYTES), stream)
        driver.cuStreamSynchronize(stream)

    def tensor(self, name):
        return holdfast.Tensor(name, self.memory.value, holdfast.DType.U8, (BYTES,),
                               device=holdfast.Device.CUDA, device_index=self.index)

    def fill(self, value):
        self.driver.cuCtxPushCurrent_v2(self.context)
        self.driver.cuMemsetD8Async(self.memory, value, ctypes.c_size_t(BYTES), self.stream)

    def bytes(self):
        self.driver.cuCtxPushCurrent_v2(self.context)
        found = numpy.empty(BYTES, numpy.uint8)
        self.driver.cuMemcpyDtoH_v2(found.ctypes.data_as(ctypes.c_void_p), self.memory,
                                    ctypes.c_size_t(BYTES))
        return found

    def hold(self, until):
        """Blocks the work queued after this until the event is set."""
        self.held = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: until.wait(30) and None)
        self.driver.cuCtxPushCurrent_v2(self.context)
        self.driver.cuLaunchHostFunc(self.stream, self.held, None)


def the_result_of_the_stream_is_saved(job, driver):
    """The copy waits for its stream, and the stream for the copy. The loop waits for neither."""
    device = DeviceMemory(driver, driver.devices - 1)
    host = numpy.full(1000, 7, numpy.float32)
    tensors = [device.tensor("weight"), holdfast.Tensor.of("host", host)]
    with holdfast.Client(job, tensors) as client:
        go = threading.Event()
        device.hold(go)
        device.fill(1)
        client.save(1, stream=device.stream.value)
        client.guard(device.stream.value)
        device.fill(2)
        host[:] = 8
        go.set()
        client.wait(1, holdfast.Tier.DISK)
        assert (device.bytes() == 2).all()
    with holdfast.Client(job, tensors) as client:
        assert client.restore().version.step == 1
        assert (device.bytes() == 1).all() and (host == 7).all()


def a_missing_device_is_named(job, driver):
    tensor = holdfast.Tensor("weight", 4096, holdfast.DType.U8, (BYTES,),
                             device=holdfast.Device.CUDA, device_index=driver.devices)
    try:
        holdfast.Client(job, [tensor]).close()
    except holdfast.HoldfastError as error:
        print(error)
    else:
        raise AssertionError("the tensor was accepted")


if __name__ == "__main__":
    globals()[sys.argv[1]](sys.argv[2], Driver())
