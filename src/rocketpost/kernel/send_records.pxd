# C types for the compiled build of send_records.py.
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING
from libc.string cimport memcpy

from rocketpost.kernel.crc cimport crc_of
from rocketpost.kernel.send_types cimport Long, Send, Source, Target
from rocketpost.kernel.send_properties cimport hash_text, key_hash, signed_hash
from rocketpost.kernel.send_topics cimport TopicTable

cdef int _WRITTEN, _ODD, _FULL, _IPV4_BYTES, _PROPERTIES_END, _SPACE
cdef Py_ssize_t _HEAD_BYTES, _PROPERTIES_MAX, _ROW
cdef Long _CLIENT_FLAGS, _BORN_V6, _STORE_V6, _MAGIC, _CRC_MASK


cdef class RecordWriter:
    cdef unsigned char[::1] records
    cdef Long[::1] rows, keys
    cdef const unsigned char[::1] added, store_host
    cdef unsigned char born_host[20]
    cdef Py_ssize_t record_room, row_room, key_room
    cdef Py_ssize_t added_bytes, properties_max, store_host_bytes, born_host_bytes
    cdef readonly Py_ssize_t record_at, row_at, key_at
    cdef readonly Long position
    cdef Long room_end, store_ms

    cpdef void begin(self, Long position, Long room_end, Long store_ms, Py_ssize_t record_at,
                     Py_ssize_t row_at, Py_ssize_t key_at)

    cpdef void set_sender(self, bytes born_host)

    @cython.locals(text_bytes=Py_ssize_t, is_unended=cython.int, properties_bytes=Py_ssize_t,
                   hosts_bytes=Py_ssize_t, name_bytes=Py_ssize_t, size=Py_ssize_t, position=Long,
                   at=Py_ssize_t, out=Target, names=Source, born_host=Source, store_host=Source,
                   added=Source, rows="Long*", sys_flag=Long, row=Py_ssize_t)
    cdef int append(self, Source p, Py_ssize_t body_at, Py_ssize_t body_bytes, Source text,
                    Py_ssize_t text_at, Py_ssize_t text_end, Long flag, TopicTable topics,
                    Py_ssize_t topic, Py_ssize_t slot, Long queue_offset, Send* send) noexcept

    @cython.locals(position=Long)
    cdef void undo(self, Py_ssize_t row, Py_ssize_t key) noexcept

    @cython.locals(keys="Long*", count=Py_ssize_t, at=Py_ssize_t, end=Py_ssize_t)
    cdef bint _put_keys(self, Source text, Long state, Send* send) noexcept


cdef void _copy(Target out, Py_ssize_t at, Source data, Py_ssize_t begin, Py_ssize_t size) noexcept

cdef void _put4(Target out, Py_ssize_t at, Long value) noexcept

cdef void _put8(Target out, Py_ssize_t at, Long value) noexcept
