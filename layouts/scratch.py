40+0 records in
40+0 records out
163840 bytes (164 kB, 160 KiB) copied, 0.000135793 s, 1.2 GB/s
