# C types for the compiled build of send_properties.py.
cimport cython
from libc.string cimport memchr, memcmp

from rocketpost.kernel.send_types cimport Long, Send, Source
from rocketpost.kernel.send_text cimport is_quotable, is_text

cdef int _NAME_END, _VALUE_END, _NAMES_MAX
cdef Long _MASK, _SIGN
cdef Py_ssize_t _ENTRY_BYTES, _SHORT_MAX


@cython.locals(count=cython.int, i=cython.int, name_end=Py_ssize_t, value_at=Py_ssize_t,
               value_end=Py_ssize_t, size=Py_ssize_t)
cdef bint read_properties(Source text, Py_ssize_t at, Py_ssize_t end, Source special,
                          Py_ssize_t special_bytes, Send* send) noexcept

@cython.locals(name_end=Py_ssize_t, value_end=Py_ssize_t, size=Py_ssize_t, is_key=cython.bint,
               is_wait=cython.bint)
cdef bint is_nothing_shared(Source text, Py_ssize_t at, Py_ssize_t end) noexcept

@cython.locals(body_bytes=Long, text_at=Py_ssize_t, text_bytes=Py_ssize_t)
cdef Py_ssize_t entry_text(Source p, Py_ssize_t at, Py_ssize_t end) noexcept

@cython.locals(h=cython.uint, byte=cython.uint, unit=cython.uint)
cdef unsigned int hash_text(Long state, Source text, Py_ssize_t at, Py_ssize_t end) noexcept

@cython.locals(number=Long)
cdef Long signed_hash(unsigned int h) noexcept

@cython.locals(number=Long)
cdef Long key_hash(unsigned int h) noexcept

@cython.locals(place=Py_ssize_t, each=Py_ssize_t)
cdef bint _is_special(Source text, Py_ssize_t at, Py_ssize_t size, Source special,
                      Py_ssize_t special_bytes) noexcept

@cython.locals(found=Source, place=Py_ssize_t)
cdef Py_ssize_t _find(Source text, Py_ssize_t at, Py_ssize_t end, int mark) noexcept

cdef bint _is_same(Source text, Py_ssize_t at, const char* other, Py_ssize_t size) noexcept

cdef bint _is_same_at(Source text, Py_ssize_t at, Source other, Py_ssize_t begin,
                      Py_ssize_t size) noexcept

@cython.locals(number=Long)
cdef Long _int(Source p, Py_ssize_t at) noexcept
