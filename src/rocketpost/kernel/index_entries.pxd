# C types for the compiled build of index_entries.py.
cimport cython

cdef Py_ssize_t _HEADER_BYTES
cdef Py_ssize_t _SLOT_BYTES
cdef Py_ssize_t _ENTRY_BYTES
cdef long long _HASH_MAX


@cython.locals(entries_at=Py_ssize_t, file=cython.p_uchar)
cpdef Py_ssize_t put_pairs(unsigned char[::1] data, const long long[::1] pairs, Py_ssize_t first,
                           Py_ssize_t count, Py_ssize_t slot_count, Py_ssize_t number,
                           long long seconds) except? -2

@cython.locals(entries_at=Py_ssize_t, used=Py_ssize_t, pair=Py_ssize_t, key_hash=cython.longlong,
               slot_at=Py_ssize_t, newest=cython.longlong, at=Py_ssize_t,
               position=cython.longlong)
cdef Py_ssize_t _put_in_place(unsigned char* file, const long long[::1] pairs,
                              Py_ssize_t first, Py_ssize_t count, Py_ssize_t slot_count,
                              Py_ssize_t number, long long seconds) noexcept

@cython.locals(value=cython.longlong)
cdef long long _get_int(const unsigned char* file, Py_ssize_t at) noexcept

cdef void _put_int(unsigned char* file, Py_ssize_t at, long long value) noexcept
