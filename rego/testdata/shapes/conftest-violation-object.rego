# v0
# says: Gatekeeper's violation
package main

violation[{"msg": msg, "shelf": shelf.name}] {
	shelf := input.resource_changes[_]
	shelf.type == "shop_shelf"
	msg := sprintf("%s has no back", [shelf.name])
}
