# C types that the modules of the send lane share.

ctypedef const unsigned char* Source
ctypedef unsigned char* Target
ctypedef long long Long

cdef struct Send:
    Long code, flag, opaque, number
    Long members_seen, fields_seen, has_letters, has_long_names
    Long queue_id, sys_flag, born_ms, message_flag, reconsume_times, is_batch
    Py_ssize_t topic_at, topic_end, text_at, text_end
    Py_ssize_t opaque_at, opaque_end, queue_at, queue_end, born_at, born_end, raw_at, raw_end
    Long is_unescaped, is_sharded, is_known
    Py_ssize_t unique_at, unique_end, tags_at, tags_end, keys_at, keys_end
    Py_ssize_t key_at, key_end, mark_at, mark_end
    Long has_bare
    Py_ssize_t values_at[16]
    Py_ssize_t value_ends[16]
    Py_ssize_t names_at[32]
    Py_ssize_t name_ends[32]
