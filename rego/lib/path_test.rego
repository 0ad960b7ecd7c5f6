package egressd.path_test

import data.egressd.path

test_below if {
	path.matches("/repos/acme/x", "/repos/acme/**")
	path.matches("/repos/acme/x/y/", "/repos/acme/**")
	path.matches("/repos/acme", "/repos/acme/**")
	not path.matches("/repos/acmeevil", "/repos/acme/**")
	not path.matches("/repos", "/repos/acme/**")
}

test_in_between if {
	path.matches("/a/z", "/a/**/z")
	path.matches("/a/b/c/z", "/a/**/z")
	not path.matches("/a/b", "/a/**/z")
}

test_part_of_a_segment if {
	path.matches("/v1/x.json", "/v1/*.json")
	not path.matches("/v1/a/x.json", "/v1/*.json")
	not path.matches("/v1/xjson", "/v1/*.json")
}

test_bytes_are_compared if {
	path.matches("/a", "/a")
	not path.matches("/A", "/a")
	not path.matches("/ab", "/a")
	not path.matches("/a/", "/a")
	path.matches("/", "/")
}

test_a_path_with_two_readings if {
	every text in [
		"", "*", "a", "//", "/a//b", "/a/./b", "/a/../b", "/..", "/a/%2e%2e/b", "/a%2fb", "/a%2Fb", "/%41",
		"/a;x=1", "/a\\b", "/a?b", "/a#b", "/a\u0000", "/a b", "/a\u007f", "/\u00e4", "/a%", "/a%2", "/a%zz", "/a\n",
	] {
		not path.matches(text, "/**")
	}
}

test_escapes_of_what_needs_one if {
	path.matches("/a%20b", "/**")
	path.matches("/a%C3%A4", "/**")
}

test_any if {
	path.any("/b/x", ["/a/**", "/b/**"])
	not path.any("/c/x", ["/a/**", "/b/**"])
}
