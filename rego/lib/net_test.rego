package egressd.net_test

import data.egressd.net as addresses

test_contains if {
	addresses.contains("10.0.0.0/8", "10.1.2.3")
	addresses.contains("10.1.2.3", "10.1.2.3")
	addresses.contains("2606:2800::/32", "2606:2800::1")
	not addresses.contains("10.0.0.0/8", "11.1.2.3")
}

test_contains_mapped if addresses.contains("10.0.0.0/8", "::ffff:10.1.2.3")

test_reaches if {
	addresses.reaches("10.0.0.0/8", "10.1.2.3")
	not addresses.reaches("10.0.0.0/8", "11.1.2.3")
}

test_any if {
	addresses.any({"10.0.0.0/8", "192.168.0.0/16"}, ["8.8.8.8", "192.168.1.1"])
	not addresses.any({"10.0.0.0/8"}, ["8.8.8.8"])
	not addresses.any({"10.0.0.0/8"}, [])
}
