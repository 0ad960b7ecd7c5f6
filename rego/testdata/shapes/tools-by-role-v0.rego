# from: policies for MCP tools, true by default and a rule for false
# v0
# says: not "TEXT" in LIST
package visor.tool.invoke

default allowed = true

allowed = false {
	endswith(input.tool.methodName, "_delete")
	not input.actor.roles[_] == "manager"
}

reason = "not for you" {
	not allowed
}
