# C types for the compiled build of send_replies.py.
cimport cython
from libc.string cimport memcpy

from rocketpost.kernel.send_types cimport Long, Send, Source, Target

cdef Py_ssize_t _PREFIX_BYTES, _OPAQUE_AT, _FIELDS_AT, _BINARY_BYTES, _ROW
cdef int _ID_DIGITS
cdef const unsigned char* _DIGITS


cdef Py_ssize_t reply_bytes_max(Py_ssize_t pieces_bytes, Py_ssize_t prefix_bytes, Py_ssize_t count,
                                Py_ssize_t unique_bytes) noexcept

@cython.locals(at=Py_ssize_t, mark=Py_ssize_t, each=Py_ssize_t)
cdef Py_ssize_t write_reply(Target out, Py_ssize_t begin, Source pieces, Long* ends, Source prefix,
                            Py_ssize_t prefix_bytes, Long* rows, Py_ssize_t row, Py_ssize_t count,
                            Long queue_offset, Source text, Send* send, int is_binary) noexcept

cdef Py_ssize_t _put_piece(Target out, Py_ssize_t at, Source pieces, Py_ssize_t begin,
                           Py_ssize_t end) noexcept

@cython.locals(i=cython.int)
cdef Py_ssize_t _put_hex(Target out, Py_ssize_t at, Long value) noexcept

@cython.locals(count=cython.int, power=Long, i=cython.int)
cdef Py_ssize_t _put_number(Target out, Py_ssize_t at, Long value) noexcept

cdef void _put4(Target out, Py_ssize_t at, Long value) noexcept

cdef void _copy(Target out, Py_ssize_t at, Source data, Py_ssize_t begin, Py_ssize_t size) noexcept
