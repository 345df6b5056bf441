"""What a file of somebody else's holds, checked before it is used. See [Note: files of others] in `l2l_nas.files`."""
