"""Named tuples made in C: what a generated `__new__` does, without a call of Python."""

from cpython.object cimport PyObject, PyTypeObject


cdef inline object named_tuple(type kind, tuple values):
    """An instance of *kind*, a NamedTuple, of all its values."""
    cdef tuple arguments = (values,)
    return (<PyTypeObject *> tuple).tp_new(kind, <PyObject *> arguments, NULL)
