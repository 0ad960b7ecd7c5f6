sandbox do --allow-egress -- python3 job.py
