# says: conftest's warn
package main

warn contains msg if {
	input.destination.port == 80
	msg := "use TLS"
}
