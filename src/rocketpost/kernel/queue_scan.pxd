# C types for the compiled build of queue_scan.py.
cimport cython

cdef bint _PLAIN
cdef Py_ssize_t _UNIT_BYTES
cdef Py_ssize_t _TAGS_AT
cdef unsigned long long _BIT


@cython.locals(sieve=cython.ulonglong, wanted_code=cython.longlong, ordinal=Py_ssize_t,
               at=Py_ssize_t, byte=Py_ssize_t, code=cython.longlong)
cdef list _matches_in_place(const unsigned char[::1] units, object wanted)
