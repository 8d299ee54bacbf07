"""An instance of a GPU, as a backend reads it."""


def instance_of(backend, gpu, gi_id):
    """The GPU instance with this id; StopIteration where there is none."""
    return next(each for each in backend.read_gpu(gpu).instances if each.gi_id == gi_id)
