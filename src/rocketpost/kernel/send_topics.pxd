# C types for the compiled build of send_topics.py.
cimport cython
from libc.string cimport memcmp

from rocketpost.kernel.send_types cimport Long, Source
from rocketpost.kernel.send_properties cimport hash_text

cdef int _NUMBERS, _NAME_AT, _NAME_BYTES, _QUEUES_AT, _QUEUE_COUNT, _FLAGS, _KEY_STATE
cdef int _TAKES_SHARDED


cdef class TopicTable:
    cdef Long[::1] offsets, numbers, slots, places
    cdef unsigned char[::1] names
    cdef Py_ssize_t slot_count, name_bytes, queue_count
    cdef readonly Py_ssize_t count
    cdef readonly Long epoch
    cdef Py_ssize_t last

    @cython.locals(number=Py_ssize_t, i=Py_ssize_t, at=Py_ssize_t, each=Py_ssize_t)
    cpdef Py_ssize_t add(self, bytes name, Py_ssize_t queue_count, Long flags, Long key_state,
                         bint takes_sharded)

    cpdef void set_slot(self, Py_ssize_t topic, Py_ssize_t queue_id, Py_ssize_t slot)

    @cython.locals(mask=Py_ssize_t, place=Py_ssize_t, found=Py_ssize_t)
    cdef Py_ssize_t find(self, Source p, Py_ssize_t at, Py_ssize_t end) noexcept

    cdef Long slot_of(self, Py_ssize_t topic, Long queue_id) noexcept

    cdef Long flags_of(self, Py_ssize_t topic) noexcept

    cdef Long key_state_of(self, Py_ssize_t topic) noexcept

    cdef bint takes_sharded(self, Py_ssize_t topic) noexcept

    cdef Py_ssize_t name_at(self, Py_ssize_t topic) noexcept

    cdef Py_ssize_t name_bytes_of(self, Py_ssize_t topic) noexcept

    @cython.locals(at=Py_ssize_t, end=Py_ssize_t, mask=Py_ssize_t, place=Py_ssize_t, names=Source)
    cdef void _enter(self, Py_ssize_t number) noexcept

    @cython.locals(begin=Py_ssize_t, size=Py_ssize_t, is_same=cython.bint)
    cdef bint _is_named(self, Py_ssize_t number, Source p, Py_ssize_t at, Py_ssize_t end) noexcept
