# C types for the compiled build of pull_lane.py.
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.string cimport memcmp, memcpy

cdef extern from *:
    """
    #ifdef __GNUC__
    #define FETCH_LINE(p) __builtin_prefetch(p)
    #else
    #define FETCH_LINE(p) ((void)(p))
    #endif
    static void prefetch(const void *begin, long long size) {
        const char *p = (const char *)begin, *end = p + (size < 4096 ? size : 4096);
        for (; p < end; p += 64)
            FETCH_LINE(p);
    }
    """
    void prefetch(const void* begin, long long size) noexcept

from rocketpost.kernel.send_types cimport Long, Source

cdef Py_ssize_t _HEADER_BYTES_MAX, _FRAME_BYTES_MAX, _HEAD_BYTES_MAX, _PREFIX_BYTES, _BINARY_BYTES
cdef Py_ssize_t _OPAQUE_AT, _FIELDS_AT, _DIGITS_MAX, _UNIT_BYTES, _SIZE_AT, _TAGS_AT
cdef Py_ssize_t _COPIED_BYTES_MAX, _PLACE_BYTES, _AHEAD, _SIGNATURE_BYTES
cdef Long _INT_MAX, _FILLER_SIZE


cdef class AnswerHead:
    cdef bytes text
    cdef int encoding
    cdef Py_ssize_t fields_at, end0, end1, end2, end3


cdef class LogPart:
    cdef const unsigned char[::1] segment
    cdef readonly Long start, end


cdef class PullLane:
    cdef unsigned char[::1] shape, head
    cdef readonly Py_ssize_t end, count, passed, size
    cdef readonly int encoding, code
    cdef readonly Long opaque, queue_offset, commit_offset
    cdef Long number
    cdef Py_ssize_t hint_queue, hint_commit, hint_opaque, hint_mark
    cdef readonly bytes signature
    cdef bint is_signed

    @cython.locals(p=Source, header_at=Py_ssize_t, header_end=Py_ssize_t,
                   encoding=cython.int, shape=bytes)
    cpdef bytes split(self, object data, Py_ssize_t at, Py_ssize_t size, bint is_signed=*)

    @cython.locals(queue=Py_ssize_t, commit=Py_ssize_t, opaque=Py_ssize_t, queue_end=Py_ssize_t,
                   commit_end=Py_ssize_t, opaque_end=Py_ssize_t, mark=Py_ssize_t)
    cdef bytes _split_json(self, Source p, Py_ssize_t at, Py_ssize_t end)

    @cython.locals(code=cython.int, queue=Py_ssize_t, commit=Py_ssize_t, queue_end=Py_ssize_t,
                   commit_end=Py_ssize_t, mark=Py_ssize_t,
                   opaque=Py_ssize_t, fields=Py_ssize_t)
    cdef bytes _split_binary(self, Source p, Py_ssize_t at, Py_ssize_t end)

    @cython.locals(i=Py_ssize_t)
    cdef bint _take_signature(self, Source p, Py_ssize_t at)

    @cython.locals(to=Py_ssize_t, cut=Py_ssize_t, after=Py_ssize_t, which=cython.int, shape=bytes)
    cdef bytes _shape_of(self, Source p, Py_ssize_t at, Py_ssize_t end, Py_ssize_t queue,
                         Py_ssize_t queue_end, Py_ssize_t commit, Py_ssize_t commit_end,
                         Py_ssize_t opaque, Py_ssize_t opaque_end, Py_ssize_t fields,
                         Py_ssize_t mark)

    @cython.locals(begin=Py_ssize_t, number=Long)
    cdef Py_ssize_t _read_number(self, Source p, Py_ssize_t at, Py_ssize_t end) noexcept

    @cython.locals(p=Source, whole=Py_ssize_t, takes_all=cython.bint, total=Py_ssize_t,
                   count=Py_ssize_t, passed=Py_ssize_t, at=Py_ssize_t, position=Long, size=Long,
                   start=Long, end=Long, head_bytes=Py_ssize_t, answer=bytes, room="char*",
                   filled=Py_ssize_t, ordinal=Py_ssize_t, ahead=Py_ssize_t)
    cpdef bytes answer(self, AnswerHead head, bytes units, object wanted, Py_ssize_t count_max,
                       Long bytes_max, LogPart part, Long first, Long queue_end)

    @cython.locals(is_binary=cython.int, to=Py_ssize_t, fields_at=Py_ssize_t)
    cdef Py_ssize_t _write_head(self, AnswerHead head, Long next_offset, Long first, Long queue_end,
                                Py_ssize_t body_bytes) noexcept

    cdef Py_ssize_t _copy(self, AnswerHead head, Py_ssize_t at, Py_ssize_t end,
                          Py_ssize_t to) noexcept

    @cython.locals(at=Py_ssize_t, digits=Py_ssize_t, rest=Long, i=Py_ssize_t)
    cdef Py_ssize_t _put(self, Py_ssize_t to, Long number, int is_binary) noexcept

    cdef void _put_int(self, Py_ssize_t to, Long number) noexcept


@cython.locals(last=Py_ssize_t)
cdef Py_ssize_t _find(Source p, Py_ssize_t at, Py_ssize_t end, const char* text, Py_ssize_t size,
                      Py_ssize_t hint) noexcept

cdef bint _is_same(Source p, Py_ssize_t at, const char* other, Py_ssize_t size) noexcept

@cython.locals(number=Long)
cdef Long _int(Source p, Py_ssize_t at) noexcept

@cython.locals(number=Long, i=Py_ssize_t)
cdef Long _long(Source p, Py_ssize_t at) noexcept
