# C types for the compiled build of send_text.py.
cimport cython
from libc.string cimport memcmp, memcpy

from rocketpost.kernel.send_types cimport Long, Send, Source, Target
from rocketpost.kernel.signatures cimport SignedText

cdef int _QUOTE, _BACKSLASH, _VALUES_MAX, _MISSES_MAX
cdef Py_ssize_t _DIGITS_MAX, _HEADER_BYTES_MAX, _PROPERTIES_BYTES_MAX
cdef Long _INT_MAX, _LONG_MAX


@cython.locals(other=cython.uchar, i=Py_ssize_t, byte=cython.int, second=cython.int,
               more=Py_ssize_t)
cdef bint is_text(Source p, Py_ssize_t at, Py_ssize_t end, int lowest) noexcept

@cython.locals(to=Py_ssize_t, byte=cython.int, mark=cython.int, unit=cython.int)
cdef Py_ssize_t unescape(Source p, Py_ssize_t at, Py_ssize_t end, Target scratch, Py_ssize_t room,
                         Send* send) noexcept

@cython.locals(unit=cython.int, digit=cython.int, i=Py_ssize_t)
cdef int _read_hex(Source p, Py_ssize_t at) noexcept

@cython.locals(is_negative=cython.bint, value=Long, digit=cython.int)
cdef bint read_number(Source p, Py_ssize_t at, Py_ssize_t end, Long most, Send* send) noexcept

@cython.locals(other=cython.uchar, i=Py_ssize_t)
cdef bint is_quotable(Source text, Py_ssize_t at, Py_ssize_t end) noexcept


cdef class PropertyShape:
    cdef unsigned char[::1] raw, text
    cdef Py_ssize_t raw_bytes, text_bytes, key_at, misses
    cdef Py_ssize_t unique_at, unique_end, tags_at, tags_end, keys_at, keys_end
    cdef Long is_sharded

    @cython.locals(key_at=Py_ssize_t, key_bytes=Py_ssize_t, rest_at=Py_ssize_t, raw=Source,
                   base=Py_ssize_t)
    cdef bint read(self, Source p, Py_ssize_t at, Py_ssize_t end, Target scratch,
                   Send* send) noexcept

    @cython.locals(key_at=Py_ssize_t, key_bytes=Py_ssize_t)
    cdef void learn(self, Source p, Py_ssize_t raw_at, Py_ssize_t raw_end, Source text,
                    Py_ssize_t at, Py_ssize_t end, Send* send) noexcept


cdef class SendShape:
    cdef unsigned char[::1] header
    cdef Long[::1] places
    cdef Py_ssize_t size, misses
    cdef int value_count
    cdef PropertyShape properties
    cdef SignedText signed
    cdef Py_ssize_t opaque_at, opaque_end, queue_at, queue_end, born_at, born_end, raw_at, raw_end
    cdef Py_ssize_t topic_at, topic_end, key_at, key_end, mark_at, mark_end
    cdef Long flag, sys_flag, message_flag, reconsume_times, is_batch, code

    @cython.locals(raw_at=Py_ssize_t, raw_end=Py_ssize_t)
    cdef bint read(self, Source p, Py_ssize_t at, Py_ssize_t end, int is_binary, Target scratch,
                   Py_ssize_t room, Send* send) noexcept

    @cython.locals(size=Py_ssize_t)
    cdef void learn(self, Source p, Py_ssize_t at, Py_ssize_t end, Send* send) noexcept

    @cython.locals(i=Py_ssize_t)
    cdef void _put(self, Py_ssize_t count, Py_ssize_t begin, Py_ssize_t end) noexcept

    @cython.locals(i=cython.int, begin=Py_ssize_t, end=Py_ssize_t)
    cdef bint _is_same(self, Source p, Py_ssize_t at) noexcept


cdef Py_ssize_t _raw_place(Source p, Py_ssize_t at, Py_ssize_t end, Py_ssize_t count) noexcept

@cython.locals(number=Long)
cdef Long _int(Source p, Py_ssize_t at) noexcept
