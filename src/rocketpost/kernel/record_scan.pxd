# C types for the compiled build of record_scan.py.
cimport cython

cdef Py_ssize_t _SMALLEST
cdef Py_ssize_t _CHECKSUM_BYTES


@cython.locals(size=Py_ssize_t, end=Py_ssize_t, store_at=Py_ssize_t, body_at=Py_ssize_t,
               topic_at=Py_ssize_t, properties_at=Py_ssize_t, body_bytes=Py_ssize_t,
               topic_bytes=Py_ssize_t, properties_bytes=Py_ssize_t, sys_flag=int, checksum=int)
cpdef object parse_record(object data, Py_ssize_t at, long long position, bint verify_crc)

@cython.locals(tail=bytes, digits=bytes, is_named=bint)
cpdef int judge_checksum(object data, Py_ssize_t at, Py_ssize_t properties_at, Py_ssize_t end)

@cython.locals(padded=bytes)
cpdef tuple index_words(bytes properties)

@cython.locals(at=Py_ssize_t, end=Py_ssize_t)
cdef str _property(bytes padded, bytes mark)
