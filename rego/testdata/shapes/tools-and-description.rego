# from: policies for MCP tools, functions with the value of an argument
# says: egressd decides connections and requests
package authz_tools

import future.keywords.if
import future.keywords.in

default allow_decision := false

allowed_tools := ["weigh", "count"]

name_of(metadata) := name if name := metadata.tool_name

allow_decision if {
	name := name_of(input.metadata)
	name in allowed_tools
}

description := sprintf("%s is fine", [name_of(input.metadata)]) if allow_decision
