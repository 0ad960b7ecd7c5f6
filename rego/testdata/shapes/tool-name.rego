# from: MCP gateways
# says: a call of a tool
package egress

allow contains {"rule": "weigh"} if input.tool.name in {"weigh", "count"}
