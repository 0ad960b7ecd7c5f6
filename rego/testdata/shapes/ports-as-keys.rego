# from: tables whose keys are ports
# says: its keys are texts
package egress

names := {"443": "web", "25": "mail"}

allow contains {"rule": "web"} if names[input.destination.port] == "web"
