# says: HH:MM
package egress

allow contains {"rule": "day"} if time.between(time.now_ns(), "Europe/Berlin", "8", "18")
