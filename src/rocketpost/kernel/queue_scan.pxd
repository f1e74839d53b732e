# C types for the compiled build of queue_scan.py.
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.string cimport memcpy

cdef bint _PLAIN
cdef Py_ssize_t _UNIT_BYTES
cdef Py_ssize_t _SIZE_AT
cdef Py_ssize_t _TAGS_AT
cdef long long _FILLER_SIZE
cdef Py_ssize_t _COPIED_BYTES_MAX
cdef unsigned long long _BIT


@cython.locals(sieve=cython.ulonglong, wanted_code=cython.longlong, ordinal=Py_ssize_t,
               at=Py_ssize_t, byte=Py_ssize_t, code=cython.longlong)
cdef list _matches_in_place(const unsigned char[::1] units, object wanted)

@cython.locals(whole=Py_ssize_t, total=Py_ssize_t, count=Py_ssize_t, scanned=Py_ssize_t,
               at=Py_ssize_t, position=cython.longlong, size=cython.longlong, joined=bytes,
               room="char*", filled=Py_ssize_t, ordinal=Py_ssize_t)
cpdef object gather_records(const unsigned char[::1] units, object wanted, Py_ssize_t count_max,
                            long long bytes_max, const unsigned char[::1] segment,
                            long long start, long long end)

@cython.locals(number=cython.longlong, byte=Py_ssize_t)
cdef long long _int(const unsigned char[::1] data, Py_ssize_t at) noexcept

@cython.locals(number=cython.longlong, byte=Py_ssize_t)
cdef long long _long(const unsigned char[::1] data, Py_ssize_t at) noexcept
