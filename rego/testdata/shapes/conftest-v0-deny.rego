# v0
# says: write it as deny in package egress
package main

banned = ["mail.shop.test", "chat.shop.test"]

deny[msg] {
	input.destination.host == banned[_]
	msg = sprintf("%s is banned", [input.destination.host])
}
