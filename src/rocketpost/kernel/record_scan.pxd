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

@cython.locals(data_bytes=Py_ssize_t, long_bytes=Py_ssize_t, short_bytes=Py_ssize_t, index=Py_ssize_t,
               ordinal=Py_ssize_t, position=cython.longlong, size=Py_ssize_t, at=cython.longlong,
               end=cython.longlong, stated_size=Py_ssize_t, stated_queue=int, stated_offset=cython.longlong,
               stated=cython.longlong, sys_flag=int, magic=cython.longlong, body_crc=cython.longlong, body_at=Py_ssize_t,
               body_bytes=Py_ssize_t, body_end=Py_ssize_t, topic_end=Py_ssize_t, name=bytes,
               properties_at=Py_ssize_t, long_name=bytes, short_name=bytes, unsound=list, checksum=int)
cpdef list find_unsound(object data, long long start, list units, long long offset, int queue_id,
                        bytes topic, bint checksum_required=*)
