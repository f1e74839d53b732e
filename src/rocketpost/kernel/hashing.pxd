# C types for the compiled build of hashing.py.
cimport cython

cdef bint _PLAIN
cdef unsigned long long _MASK
cdef unsigned long long _SIGN
cdef Py_ssize_t _SHORT


@cython.locals(h=cython.ulonglong, unit=cython.uchar, at=Py_ssize_t, data=bytes)
cpdef unsigned int extend_state(unsigned int state, str text)

@cython.locals(h=cython.longlong)
cpdef long long string_hash(str text)

cpdef unsigned int index_hash(str text)

@cython.locals(h=cython.ulonglong)
cpdef unsigned int index_hash_after(unsigned int state, str text)

cpdef list index_hashes_after(unsigned int state, object texts)

cpdef list index_hashes(object states, object texts)
