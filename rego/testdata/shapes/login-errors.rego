# from: the PAM module, a set of errors beside allow
# v0
# says: write it as allow in package egress
package sshd.authz

import input.display_responses
import input.sysinfo

default allow = false

allow {
	display_responses.word == "tulip"
	sysinfo.pam_username == "keeper"
}

errors["no way in"] {
	not allow
}
