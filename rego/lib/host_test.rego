package egressd.host_test

import data.egressd.host

test_the_host_itself if host.matches("api.example.com", "api.example.com")

test_upper_case_and_one_trailing_dot if {
	host.matches("API.Example.COM.", "api.example.com")
	host.matches("api.example.com", "API.Example.com")
}

test_below_a_suffix if {
	host.matches("a.example.com", "*.example.com")
	host.matches("a.b.example.com", "*.example.com")
	not host.matches("example.com", "*.example.com")
}

test_a_suffix_is_made_of_labels if {
	not host.matches("evilexample.com", "*.example.com")
	not host.matches("evilexample.com", "example.com")
	not host.matches("example.com.evil.test", "example.com")
	not host.matches("example.com.evil.test", "*.example.com")
}

test_what_is_no_host_is_in_no_pattern if {
	every text in [
		"", ".", "..", "example.com..", ".example.com", "a..example.com",
		"example.com\u0000.evil.test", "evil.test\u0000.example.com", "example.com\n", "example.com ", " example.com",
		"example.com:443", "user@example.com", "example.com/", "https://example.com", "example.com%25x",
		"ex\u00e4mple.com", "\u212aexample.com", "-a.example.com", "a-.example.com",
	] {
		not host.matches(text, "*")
		not host.matches(text, "example.com")
		not host.matches(text, "*.example.com")
	}
}

test_one_label if {
	host.matches("a.example.com", "*{1}.example.com")
	host.matches("A.Example.com.", "*{1}.Example.com.")
	not host.matches("a.b.example.com", "*{1}.example.com")
	not host.matches("example.com", "*{1}.example.com")
	not host.matches("a.xexample.com", "*{1}.example.com")
	not host.matches("10.0.0.1", "*{1}.0.0.1x")
}

test_a_star_within_a_label if {
	host.matches("prod-1.example.com", "prod-*.example.com")
	host.matches("prod.example.com", "prod*.example.com")
	host.matches("eu-prod.example.com", "*-PROD.example.com")
	not host.matches("prod-1.a.example.com", "prod-*.example.com")
	not host.matches("a.prod-1.example.com", "prod-*.example.com")
	not host.matches("xprod-1.example.com", "prod-*.example.com")
	not host.matches("eu-prod1.example.com", "*-prod.example.com")
	host.any("prod-1.example.com", ["a.test", "prod-*.example.com"])
}

test_any_host if {
	host.matches("example.com", "*")
	host.matches("10.0.0.1", "*")
	host.matches("::1", "*")
}

test_addresses if {
	host.matches("10.1.2.3", "10.0.0.0/8")
	host.matches("10.0.0.5", "10.0.0.5")
	host.matches("2606:2800::1", "2606:2800::/32")
	not host.matches("11.0.0.1", "10.0.0.0/8")
	not host.matches("example.com", "0.0.0.0/0")
}

test_mapped_addresses_are_ipv4 if {
	host.matches("::ffff:10.1.2.3", "10.0.0.0/8")
	host.matches("[::ffff:10.1.2.3]", "10.0.0.0/8")
	not host.matches("::ffff:11.1.2.3", "10.0.0.0/8")
}

test_zones_and_odd_numbers_are_no_hosts if {
	every text in ["fe80::1%eth0", "::ffff:10.1.2.3%25x.example.com", "0x7f.1", "127.1", "010.0.0.1", "2130706433", "10.0.0.256"] {
		not host.matches(text, "*")
	}
}

test_any if {
	host.any("b.test", ["a.test", "b.test"])
	host.any("x.a.test", {"*.a.test", "b.test"})
	not host.any("a.test", {"*.a.test", "b.test"})
	not host.any("a.test", set())
	not host.any("a.test", [])
}

test_canonical if host.canonical("API.Example.COM.") == "api.example.com"

test_any_of_addresses if {
	patterns := ["a.test", "10.0.0.0/8", "2606:2800::/32", "192.168.1.1", "172.16.0.0/12"]
	host.any("10.1.2.3", patterns)
	host.any("::ffff:10.1.2.3", patterns)
	host.any("2606:2800::1", patterns)
	host.any("192.168.1.1", patterns)
	not host.any("192.168.1.2", patterns)
	not host.any("11.0.0.1", patterns)
	not host.any("2606:2801::1", patterns)
	host.any("anything.test", ["*"])
	host.any("10.0.0.1", ["*"])
	not host.any("no host", ["*"])
}
